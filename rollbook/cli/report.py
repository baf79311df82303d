"""`report`: the scoreboard of a batch. Every rate is given over both denominators."""

from typing import Annotated, Any

import typer

from models.contract import RecordedContract
from rollbook.cli.command import AsJson, BatchArgument, finish
from rollbook.cli.connections import open_reader, settings
from rollbook.cli.out import print_fields, print_json, print_table, say, several
from rollbook.cli.status import print_excluded
from rollbook.ledger.reader import Reader

Row = dict[str, Any]


def report(
    batch: BatchArgument,
    rollouts: Annotated[bool, typer.Option("--rollouts", help="Also list every rollout.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show scores: of planned (masked and unfinished count as no success) and of admitted."""

    async def work() -> int:
        async with open_reader(settings()) as reader:
            report = await read(reader, batch, rollouts)
        print_json(report) if as_json else print_report(report)
        return 0

    finish(work())


async def read(reader: Reader, batch_id: str, rollouts: bool) -> Row:
    """The data of `report`."""
    row = await reader.batch(batch_id)
    contract = RecordedContract.read(row.contract)
    return {
        "batch_id": batch_id,
        "reward_mode": contract.reward_mode,
        "contract_digest": row.contract_digest,
        "null_desktop": contract.resolved.null_desktop,
        "counts": (await reader.counts(batch_id)).model_dump(),
        "scoreboard": await reader.scoreboard(batch_id),
        "pass_k": await reader.pass_k(batch_id),
        "spread": await reader.spread(batch_id),
        "masked_reasons": await reader.masked(batch_id),
        "excluded": await reader.excluded(batch_id),
        "under_pressure": await reader.under_pressure(batch_id),
        "notice": row.notice or "",
        "rollouts": await reader.rollouts(batch_id) if rollouts else None,
    }


def print_report(report: Row) -> None:
    """The report, for people."""
    counts = report["counts"]
    open_rows = counts["waiting"] + counts["running"]
    print_fields(
        {
            "batch": report["batch_id"],
            "reward mode": report["reward_mode"],
            "beware": "do-nothing desktop: these scores mean nothing" if report["null_desktop"] else None,
            "notice": report["notice"],
            "not final yet": f"{open_rows} of {counts['planned']} rollouts; the numbers will change"
            if open_rows
            else None,
        }
    )
    say()
    print_scoreboard(report["scoreboard"])
    _print_samples(report["pass_k"], report["spread"])
    if report["masked_reasons"]:
        say()
        print_table(("MASKED BECAUSE", "ROLLOUTS"), [(r["reason"], r["rollouts"]) for r in report["masked_reasons"]])
    print_excluded(report["excluded"])
    if pressed := report["under_pressure"]:
        say(f"{several(len(pressed), 'rollout')} set up or evaluated on a host under pressure, for instance "
            f"{pressed[0]['rollout_key']}; `rollbook rerun {report['batch_id']} --under-pressure`")  # fmt: skip
    if report["rollouts"] is not None:
        say()
        print_rollouts(report["rollouts"])


def print_scoreboard(rows: list[Row]) -> None:
    """Success and mean score by domain, over planned and over admitted."""
    cells = [
        (
            row["domain"],
            row["planned"],
            row["admitted"],
            row["masked"],
            row["binary_success_count"],
            _rate(row, "planned"),
            _rate(row, "admitted"),
            row["mean_score_of_planned"],
            row["mean_score_of_admitted"],
        )
        for row in rows
        if row["domain"] != "(all)" or len(rows) != 2  # one domain: its row is the whole
    ]
    columns = (
        "DOMAIN",
        "PLANNED",
        "ADMITTED",
        "MASKED",
        "SUCCESS",
        "OF PLANNED",
        "OF ADMITTED",
        "SCORE OF PLANNED",
        "OF ADMITTED",
    )
    print_table(columns, cells)
    say("success: score 1; of planned: what is masked or not final counts as no success and 0; [95 % Wilson interval]")
    _print_reruns(rows)


def _print_reruns(rows: list[Row]) -> None:
    """Attempts beyond the first, and results that were replaced."""
    whole = next((row for row in rows if row["domain"] == "(all)"), None)
    if whole is None:
        return
    if whole["attempts"] > whole["planned"]:
        attempts, planned = several(whole["attempts"], "attempt"), several(whole["planned"], "rollout")
        say(f"{attempts} for {planned}; {several(whole['reruns'], 'rerun')} requested")
    if further := whole["further_attempts"]:
        word = "attempt was" if further == 1 else "attempts were"
        say(f"{further} further {word} made after the agent had acted; success of first attempts, of planned: "
            f"{_rate(whole, 'first_attempts')}")  # fmt: skip
    if whole["superseded"]:
        word = "result that had counted was" if whole["superseded"] == 1 else "results that had counted were"
        say(f"{whole['superseded']} {word} superseded: run again on request")
    if broken := whole["desktop_broken"]:
        word = "attempt" if broken == 1 else "attempts"
        say(f"{broken} {word} broke the desktop after the agent acted; view broken_desktops has them by task")
    if known := whole["evaluated_then_closed"]:
        word, them = ("attempt was", "it") if known == 1 else ("attempts were", "them")
        say(f"{known} {word} evaluated and then did not count; `rollbook audit` names {them}")


def _rate(row: Row, of: str) -> str | None:
    rate = row[f"binary_success_rate_of_{of}"]
    if rate is None:
        return None
    low, high = row[f"wilson_low_of_{of}"], row[f"wilson_high_of_{of}"]
    return f"{rate:.1%} [{low:.0%}, {high:.0%}]"


def _print_samples(pass_k: list[Row], spread: Row | None) -> None:
    """Only where tasks have several samples."""
    if len(pass_k) < 2:
        return
    say()
    # Each pair of rates has tasks of its own: a task counts where it has at least K rollouts of that kind.
    of_planned = ("PASS@K OF PLANNED", "PASS^K OF PLANNED", "TASKS OF PLANNED")
    of_admitted = ("PASS@K OF ADMITTED", "PASS^K OF ADMITTED", "TASKS OF ADMITTED")
    cells = [
        (
            row["k"],
            row["pass_at_k_of_planned"],
            row["pass_hat_k_of_planned"],
            row["tasks_of_planned"],
            row["pass_at_k_of_admitted"],
            row["pass_hat_k_of_admitted"],
            row["tasks_of_admitted"],
        )
        for row in pass_k
    ]
    print_table(("K", *of_planned, *of_admitted), cells)
    if spread and spread["success_rate_stderr"] is not None:
        say(
            f"over {spread['samples']} samples of {spread['tasks']} {'task' if spread['tasks'] == 1 else 'tasks'}: "
            f"success of planned {spread['success_rate']:.4f} "
            f"± {spread['success_rate_stderr']:.4f} (standard error between samples)"
        )


def print_rollouts(rows: list[Row]) -> None:
    """One line per rollout."""
    cells = [
        (
            row["rollout_key"],
            "admitted" if row["admitted"] else "masked" if row["masked"] else row["state"],
            row["termination_reason"],
            row["score"],
            row["reward"],
            row["steps"],
            row["attempts"],
        )
        for row in rows
    ]
    print_table(("ROLLOUT", "STATE", "ENDED AS", "SCORE", "REWARD", "STEPS", "ATTEMPTS"), cells)
