"""Janitor: reconciliation of ledger, Temporal and desktops; run by a schedule, or by hand."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from models import names
from models.reconcile import Reconciled, ReconcileRequest


@workflow.defn(name=names.JANITOR)
class Janitor:
    """One look at everything that claims to be under way."""

    @workflow.run
    async def run(self, request: ReconcileRequest | None = None) -> Reconciled:
        found: Reconciled = await workflow.execute_activity(
            names.RECONCILE,
            request or ReconcileRequest(),
            result_type=Reconciled,
            start_to_close_timeout=timedelta(minutes=30),
            heartbeat_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=5), maximum_attempts=3),
        )
        workflow.set_current_details(
            f"alive {found.alive}, missing {found.missing}, closed {len(found.closed)}, reaped {len(found.reaped)}"
        )
        return found
