"""`audit`: prove the roll call of a batch from the ledger and the artifact store alone."""

import re
import uuid
from dataclasses import asdict
from typing import Annotated

import typer
from temporalio.client import WorkflowFailureError

from models import names
from models.janitor import Reconciled, ReconcileRequest
from rollbook.artifacts import ArtifactStore
from rollbook.cli.command import FAILURE, OK, AsJson, BatchArgument, Failed, RolloutArgument, finish
from rollbook.cli.connections import connect, open_ledger, open_reader, settings
from rollbook.cli.out import clean, print_json, print_table, say, several
from rollbook.config.settings import Settings
from rollbook.errors import InvalidInput
from rollbook.evidence.exact import exact_envelope, full_envelope, trajectory_model_calls
from rollbook.evidence.load import load_calls
from rollbook.evidence.trajectory import semantic_trajectory
from rollbook.evidence.verify import Proof, verify
from rollbook.ledger import AuditReport, Ledger
from rollbook.ledger.reader import RecordedAttempt
from rollbook.temporal.namespace import schedule_id

Expect = Annotated[
    str | None,
    typer.Option(metavar="DIGEST", help="A digest that the batch had when it was complete, kept outside the ledger."),
]


def audit(batch: BatchArgument, expect: Expect = None, as_json: AsJson = False) -> None:
    """Prove that every planned rollout is there once, whole and unchanged. Exit code 1 if anything is wrong."""
    if expect is not None and not re.fullmatch(r"[0-9a-f]{64}", expect):
        raise InvalidInput("--expect: a digest has 64 hexadecimal digits, as in the result of the batch's workflow")

    async def work() -> int:
        config = settings()
        async with open_reader(config) as reader:
            await reader.batch(batch)  # refuses a wrong name with similar ones
        async with open_ledger(config) as ledger:
            report = await examine(config, ledger, batch, expect)
        print_json(asdict(report)) if as_json else print_audit(report)
        return OK if report.ok else FAILURE

    finish(work())


async def examine(config: Settings, ledger: Ledger, batch_id: str, expect: str | None = None) -> AuditReport:
    """The audit of a batch."""
    return await ledger.audit(batch_id, ArtifactStore.open(config.artifacts), expect)


def print_audit(report: AuditReport) -> None:
    """Print findings row by row, then notices, then the verdict."""
    if report.findings:
        cells = [(finding.kind, finding.subject, clean(finding.detail, 300)) for finding in report.findings]
        print_table(("WRONG", "WHERE", "WHAT"), cells)
        say()
    for notice in report.notices:
        say(f"note: {notice.kind}: {notice.subject}: {clean(notice.detail, 300)}")
    verdict = "audit clean" if report.ok else f"audit failed: {several(len(report.findings), 'finding')}"
    say(
        f"{report.batch_id}: {verdict}; {report.planned} planned, {report.final} final, "
        f"{report.artifacts_checked} artifacts checked"
        + (f", {several(report.excluded, 'task')} excluded" if report.excluded else "")
    )
    if report.completions:
        same = "as it was when the batch was complete" if report.digest == report.completions[-1] else "see the notes"
        say(f"digest {report.digest}: {same}")


evidence = typer.Typer(help="What the model saw, said and did.", no_args_is_help=True)

FullOption = Annotated[bool, typer.Option("--full", help="With token arrays, prompts and replies of every call.")]
AttemptOption = Annotated[int | None, typer.Option("--attempt", help="The selected one by default.", min=1)]


@evidence.command("verify")
def verify_rollout(rollout: RolloutArgument, attempt: AttemptOption = None, as_json: AsJson = False) -> None:
    """Build every request again from the stored turns, read every reply again, compare.

    Exit code 1 if anything differs or could not be checked.
    """

    async def work() -> int:
        config = settings()
        proof = await verify(await _recorded(config, rollout, attempt), ArtifactStore.open(config.artifacts))
        print_json(proof.to_json()) if as_json else _print(proof)
        return OK if proof.ok else FAILURE

    finish(work())


@evidence.command("trace")
def trace(rollout: RolloutArgument, attempt: AttemptOption = None, full: FullOption = False) -> None:
    """Print the semantic trajectory as JSON, and the exact envelope when every call is complete."""

    async def work() -> int:
        config = settings()
        loaded = await load_calls(await _recorded(config, rollout, attempt), ArtifactStore.open(config.artifacts))
        exact = full_envelope(loaded) if full else exact_envelope(loaded)
        partial = {"trajectory_model_calls": trajectory_model_calls(loaded)} if full and exact is None else {}
        print_json(semantic_trajectory(loaded) | {"exact": exact} | partial)
        return OK

    finish(work())


async def _recorded(config: Settings, rollout: str, attempt: int | None) -> RecordedAttempt:
    async with open_reader(config) as reader:
        key = await reader.find_rollout(rollout)
    async with open_ledger(config) as ledger:
        return await ledger.recorded(key, attempt)


def _print(proof: Proof) -> None:
    problems = [*proof.mismatches, *proof.unchecked]
    if problems:
        cells = [
            (mismatch.step, mismatch.parse_attempt, mismatch.what, clean(mismatch.detail, 300))
            for mismatch in proof.mismatches
        ]
        cells += [
            (mismatch.step, mismatch.parse_attempt, mismatch.what, f"could not check: {clean(mismatch.detail, 280)}")
            for mismatch in proof.unchecked
        ]
        print_table(("STEP", "CALL", "WHAT", "DIFFERENCE"), cells)
        say()
    verdict = "evidence verified"
    if proof.mismatches:
        verdict = f"evidence refuted: {several(len(proof.mismatches), 'mismatch')}"
    elif proof.unchecked:
        verdict = f"evidence not proven: {several(len(proof.unchecked), 'thing')} could not be checked"
    say(
        f"{proof.rollout_key} attempt {proof.attempt_index}: {verdict}; {several(proof.calls, 'call')}, "
        f"{proof.prompts_equal} prompts rendered again, {proof.requests_equal} requests built again, "
        f"{proof.replies_equal} replies read again, {proof.images_equal} images equal"
    )


LISTS = {
    "closed": "closed as reconciled, their workflow is gone",
    "requeued": "put back to waiting, their workflow never claimed",
    "cancelled": "cancelled, their row was closed",
    "reaped": "desktops of ended attempts removed",
    "finished": "cancelled batches whose workflow went away: their rows were closed for it",
    "stopped": "stopped batches without a workflow, nothing of them runs; their rows stay planned",
    "relaunched": "batches that Temporal had lost: started again",
    "unattended": "batches with rows to run and no live workflow: submit their spec again",
    "doubts": "could not be looked at, nothing was concluded",
}


def reconcile(
    min_age_s: Annotated[
        float | None,
        typer.Option("--min-age", min=0, help="Seconds a row must have been quiet."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold ledger, workflows and desktops against each other, as the Janitor does on its schedule.

    A workflow counts as gone after two sightings, at least ten seconds apart. Exit code 1 if something could not be
    looked at.
    """

    async def work() -> int:
        config = settings()
        client = await connect(config)
        try:
            done: Reconciled = await client.execute_workflow(
                names.JANITOR,
                ReconcileRequest(min_age_s=min_age_s, deployment_id=config.deployment_id),
                id=f"{schedule_id(config.deployment_id)}-by-hand-{uuid.uuid4().hex[:8]}",
                task_queue=config.task_queue_orchestrate,
                result_type=Reconciled,
                static_summary="reconcile, by hand",
            )
        except WorkflowFailureError as error:
            raise Failed(f"reconcile failed: {error.cause}") from error
        print_json(done.model_dump()) if as_json else _print_reconciled(done)
        return FAILURE if done.doubts else OK

    finish(work())


def _print_reconciled(done: Reconciled) -> None:
    say(f"{done.looked_at} rows under way looked at: {done.alive} alive, {done.missing} missing")
    if done.strangers:
        say(f"{done.strangers} desktops of this deployment that the ledger does not know: `rollbook sandboxes ls`")
    for name, meaning in LISTS.items():
        if shown := getattr(done, name):
            total = done.totals.get(name, len(shown))
            say(f"{total} {meaning}: {', '.join(shown)}{' …' if total > len(shown) else ''}")
