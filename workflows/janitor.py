"""Janitor: reconciliation of ledger, Temporal and desktops; run by a schedule, or by hand."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from models import names
from models.activities import RECONCILE
from models.janitor import Reconciled, ReconcileRequest, read_request


@workflow.defn(name=names.JANITOR)
class Janitor:
    """One look at everything that claims to be under way."""

    @workflow.run
    async def run(self, *inputs: Any) -> Reconciled:
        answer: Any = await workflow.execute_activity(
            RECONCILE.name,
            _request(inputs),
            start_to_close_timeout=timedelta(minutes=30),
            heartbeat_timeout=timedelta(seconds=60),
            # by time, not by tries: on a queue that deployments share by mistake, a foreign worker uses up many
            schedule_to_close_timeout=timedelta(minutes=45),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=5), maximum_interval=timedelta(minutes=5)),
        )
        report = _report(answer)
        shown = {"alive": report.alive, "missing": report.missing}
        shown |= {name: report.totals.get(name, 0) for name in ("closed", "requeued", "reaped", "finished", "doubts")}
        workflow.set_current_details(", ".join(f"{name} {number}" for name, number in shown.items()))
        return report


def _report(answer: Any) -> Reconciled:
    try:
        return RECONCILE.read(answer)
    except ValueError as error:
        unreadable = str(error)
    raise ApplicationError(unreadable, non_retryable=True)


def _request(inputs: tuple[Any, ...]) -> ReconcileRequest:
    """The request, or an end that names the wrong field: an input that cannot be decoded would be retried for ever."""
    try:
        if len(inputs) > 1:
            raise ValueError(f"the input must be one JSON object, or nothing (given: {len(inputs)} inputs)")
        return read_request(inputs[0] if inputs else None)
    except ValueError as error:
        refused = str(error)
    raise ApplicationError(refused, type=names.INVALID_INPUT, non_retryable=True)
