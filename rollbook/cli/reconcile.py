"""`reconcile`: one run of the Janitor, by hand."""

import uuid
from typing import Annotated

import typer
from temporalio.client import WorkflowFailureError

from models import names
from models.janitor import Reconciled, ReconcileRequest
from rollbook.cli.aio import finish
from rollbook.cli.failures import NOT_TRUE, OK, Failed
from rollbook.cli.opening import connect, settings
from rollbook.cli.options import AsJson
from rollbook.cli.out import print_json, say
from rollbook.temporal.schedules import schedule_id

LISTS = {
    "closed": "closed as reconciled, their workflow is gone",
    "requeued": "put back to waiting, their workflow never claimed",
    "cancelled": "cancelled, their row was closed",
    "reaped": "desktops of ended attempts removed",
    "finished": "cancelled batches whose workflow went away: their rows were closed for it",
    "stopped": "stopped batches without a workflow, nothing of them runs; their rows stay planned",
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
        found = settings()
        client = await connect(found)
        try:
            done: Reconciled = await client.execute_workflow(
                names.JANITOR,
                ReconcileRequest(min_age_s=min_age_s),
                id=f"{schedule_id(found.deployment_id)}-by-hand-{uuid.uuid4().hex[:8]}",
                task_queue=found.task_queue_orchestrate,
                result_type=Reconciled,
                static_summary="reconcile, by hand",
            )
        except WorkflowFailureError as error:
            raise Failed(f"reconcile failed: {error.cause}") from error
        print_json(done.model_dump()) if as_json else _print(done)
        return NOT_TRUE if done.doubts else OK

    finish(work())


def _print(done: Reconciled) -> None:
    say(f"{done.looked_at} rows under way looked at: {done.alive} alive, {done.missing} missing")
    if done.strangers:
        say(f"{done.strangers} desktops of this deployment that the ledger does not know: `rollbook sandboxes ls`")
    for name, meaning in LISTS.items():
        if found := getattr(done, name):
            total = done.totals.get(name, len(found))
            say(f"{total} {meaning}: {', '.join(found)}{' …' if total > len(found) else ''}")
