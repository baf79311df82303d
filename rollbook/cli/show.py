"""`show`: everything about one rollout."""

from typing import Annotated, Any

import typer

from rollbook.cli.command import AsJson, RolloutArgument, finish
from rollbook.cli.connections import Links, open_reader, settings
from rollbook.cli.out import clean, print_fields, print_json, print_table, say
from rollbook.errors import InvalidInput

Row = dict[str, Any]


def show(
    rollout: RolloutArgument,
    attempt: Annotated[
        int | None, typer.Option(help="Steps of this attempt; the selected one by default.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a rollout: attempts, outcome, admission, evaluation, steps and timeline."""

    async def work() -> int:
        config = settings()
        links = Links.of(config)
        async with open_reader(config) as reader:
            key = await reader.find_rollout(rollout)
            row = await reader.rollout(key)
            shown = _shown_attempt(row, attempt)
            row["steps_of_attempt"] = shown
            row["steps_taken"] = await reader.steps(key, shown) if shown else []
        _add_links(row, links)
        print_json(row) if as_json else _print(row)
        return 0

    finish(work())


def _shown_attempt(row: Row, wanted: int | None) -> int | None:
    indexes = [attempt["attempt_index"] for attempt in row["attempts"]]
    if wanted is not None:
        if wanted not in indexes:
            raise InvalidInput(f"--attempt: {row['rollout_key']} has {len(indexes)} attempts")
        return wanted
    return row["selected_attempt"] or (indexes[-1] if indexes else None)


def _add_links(row: Row, links: Links) -> None:
    row["ui"] = links.workflow(row["rollout_key"])
    for attempt in row["attempts"]:
        attempt["evaluator_log"] = links.artifact(attempt["log_sha256"])
    for step in row["steps_taken"]:
        for name in ("screenshot", "accessibility_tree", "prompt", "response"):
            step[name] = links.artifact(step[f"{name}_sha256"])


def _print(row: Row) -> None:
    print_fields(
        {
            "rollout": row["rollout_key"],
            "instruction": clean(row["instruction"], 500),
            "state": row["state"],
            "counts": _verdict(row),
            "ended as": row["termination_reason"],
            "score": row["score"],
            "checks": _checks(row),
            "reward": row["reward"],
            "detail": clean(row["detail"] or "", 1000) or None,
            "Temporal UI": row["ui"],
        }
    )
    _print_attempts(row["attempts"], row["selected_attempt"])
    _print_steps(row["steps_taken"], row["steps_of_attempt"])
    _print_decisions(row["decisions"], row["reruns"])
    _print_timeline(row["timeline"])


def _checks(row: Row) -> str | None:
    """The checks behind the score that counts, unless it is full."""
    for attempt in row["attempts"]:
        if attempt["attempt_index"] == row["selected_attempt"] and attempt["evaluated"] and row["score"] != 1:
            return clean(attempt["evaluation_detail"] or "", 1000) or None
    return None


def _verdict(row: Row) -> str:
    if row["state"] != "final":
        return "not yet: no attempt is final"
    word = "admitted" if row["admitted"] else "masked"
    return f"{word}: {row['admission_reason']} (attempt {row['selected_attempt']}, decided by {row['decided_by']})"


def _print_attempts(attempts: list[Row], selected: int | None) -> None:
    say()
    cells = [
        (
            f"{row['attempt_index']}{' *' if row['attempt_index'] == selected else ''}",
            row["termination_reason"] or "open",
            row["steps"],
            row["score"],
            _evaluation(row),
            row["provider"] and f"{row['provider']}, {row['sandbox_state']}, isolation {row['isolation'] or '?'}",
            clean(row["detail"] or "", 200),
        )
        for row in attempts
    ]
    print_table(("ATTEMPT", "ENDED AS", "STEPS", "SCORE", "EVALUATION", "DESKTOP", "DETAIL"), cells)
    for row in attempts:
        if row["cause"]:
            say(f"attempt {row['attempt_index']} failed, cause {row['cause']}: {clean(row['cause_detail'], 300)}")
        if row["tampered"]:
            say(f"attempt {row['attempt_index']} has another guest server: {clean(row['examination_detail'], 300)}")
        if row["evaluator_log"]:
            say(f"evaluator log of attempt {row['attempt_index']}: {row['evaluator_log']}")
        if row["view_url"] and row["sandbox_state"] == "running":
            say(f"live view: {row['view_url']}")


def _evaluation(row: Row) -> str | None:
    if row["evaluated"] is None:
        return None
    if row["evaluated"]:
        return f"score {row['evaluator_score']} ({row['evaluator_revision'] or '?'})"
    return clean(f"{row['evaluation_reason']}: {row['evaluation_detail']}", 200)


def _print_steps(steps: list[Row], attempt: int | None) -> None:
    if not steps:
        return
    say()
    cells = [
        (row["step"], clean(_said(row), 120), _done(row), row["screenshot"] or (row["screenshot_sha256"] or "")[:16])
        for row in steps
    ]
    print_table(("STEP", "DECIDED", "DONE", "SCREENSHOT AFTER IT"), cells, title=f"Steps of attempt {attempt}")


def _said(row: Row) -> str:
    if row["step"] == 0:
        return "(first look)"
    parts = [row["summary"] or ", ".join(row["actions"] or []), row["policy_stop_reason"], row["parse_error"]]
    return "; ".join(part for part in parts if part)


def _done(row: Row) -> str:
    counted: dict[str, int] = {}
    for action in row["done"] or []:
        status = str(action.get("status", "?"))
        counted[status] = counted.get(status, 0) + 1
    return ", ".join(f"{number} {status}" for status, number in counted.items())


def _print_decisions(decisions: list[Row], reruns: list[Row]) -> None:
    say()
    cells = [
        (
            row["attempt_index"],
            row["scope"],
            "admitted" if row["admitted"] else "masked",
            row["reason"],
            row["policy_id"],
            row["decided_by"],
            row["decided_at"],
        )
        for row in decisions
    ]
    if cells:
        columns = ("ATTEMPT", "SCOPE", "DECISION", "REASON", "POLICY", "BY", "AT")
        print_table(columns, cells, optional=("AT", "BY", "POLICY"))
    for row in reruns:
        word = "superseded" if row["supersede"] else "rerun requested"
        say(f"{word} after attempt {row['after_attempt']} by {row['requested_by']}: {clean(row['reason'], 200)}")


def _print_timeline(timeline: list[Row]) -> None:
    say()
    started = min((row["at"] for row in timeline), default=None)
    cells = [
        (
            f"{(row['at'] - started).total_seconds():+.1f} s",
            row["attempt_index"],
            row["event"],
            row["step"],
            clean(row["detail"] or "", 100),
        )
        for row in timeline
    ]
    print_table(("TIME", "ATTEMPT", "EVENT", "STEP", "DETAIL"), cells, title=f"Timeline from {started}")
