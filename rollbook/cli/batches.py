"""Batch workflows: start them, ask Temporal about them, name the state of a batch."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, CancelledError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from models import names
from models.batch import BatchResult, Counts
from models.spec import BatchSpec
from rollbook.cli.command import Failed
from rollbook.cli.out import clean
from rollbook.errors import InvalidInput
from rollbook.ledger.reader import BatchRow, Reader
from rollbook.redaction import redact_head

POLL_S = 0.2

Life = Literal["running", "completed", "failed", "canceled", "terminated", "timed out", "continued", "absent"]

_LIFE: dict[WorkflowExecutionStatus, Life] = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "canceled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed out",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "continued",
}


@dataclass(frozen=True)
class Pulse:
    """Temporal's state of a workflow."""

    life: Life
    """`absent` where Temporal knows no run (any more)."""
    troubles: list[str]
    """Activities that have failed so far and are tried again, one line each."""


async def pulse_of(client: Client, workflow_id: str) -> Pulse:
    """The pulse of the newest run of a workflow."""
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return Pulse("absent", [])
        raise
    # A status that this version does not know is taken for running: nothing is started beside it.
    life = _LIFE.get(description.status, "running") if description.status is not None else "running"
    return Pulse(life, _troubles(description))


def _troubles(description: WorkflowExecutionDescription) -> list[str]:
    return [
        f"{pending.activity_type.name} fails, try {pending.attempt}: {clean(pending.last_failure.message, 300)}"
        for pending in description.raw_description.pending_activities
        if pending.attempt > 1 and pending.HasField("last_failure")
    ]


async def life_of(client: Client, workflow_id: str) -> Life:
    """Status of a workflow: running, or the end of its newest run."""
    return (await pulse_of(client, workflow_id)).life


@dataclass(frozen=True)
class Launch:
    """A start of a batch workflow."""

    batch_id: str
    run_id: str
    already_running: bool = False


async def start_batch(client: Client, batch_id: str, spec: dict[str, Any], task_queue: str) -> Launch:
    """Start BenchmarkBatch, or find that it runs."""
    try:
        handle = await client.start_workflow(
            names.BATCH,
            spec,
            id=batch_id,
            task_queue=task_queue,
            # A batch that has ended is resumed or extended under its own id.
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            # Not USE_EXISTING: the caller must learn that its spec is not the one that runs.
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            static_summary=redact_head(str(spec.get("note", "")), 200) or None,
        )
    except WorkflowAlreadyStartedError as error:
        return Launch(batch_id, error.run_id or "", already_running=True)
    return Launch(batch_id, handle.first_execution_run_id or "")


async def await_registration(
    client: Client, reader: Reader, launch: Launch, timeout_s: float
) -> BatchResult | Literal["registered", "not taken up"]:
    """Wait until a launch is registered, or has ended; its result when it ended at once.

    Raises InvalidInput with the workflow's own words when it was refused, Failed when it failed otherwise.
    """
    handle = client.get_workflow_handle(launch.batch_id, run_id=launch.run_id, result_type=BatchResult)
    ends_at = time.monotonic() + timeout_s
    while time.monotonic() < ends_at:
        row = await reader.known_batch(launch.batch_id)
        # The row of an earlier launch does not count: this one may still be refused.
        if row is not None and row.launch_id == launch.run_id and row.launch_index is not None:
            return "registered"
        if (await handle.describe()).status != WorkflowExecutionStatus.RUNNING:
            return await result_of(client, launch.batch_id, launch.run_id)
        await asyncio.sleep(POLL_S)
    return "not taken up"


async def result_of(client: Client, batch_id: str, run_id: str | None = None) -> BatchResult:
    """The result of a batch workflow; raises InvalidInput when it was refused, Failed when it failed otherwise."""
    handle = client.get_workflow_handle(batch_id, run_id=run_id, result_type=BatchResult)
    try:
        result: BatchResult = await handle.result()
        return result
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == names.INVALID_INPUT:
            raise InvalidInput(cause.message) from error
        if isinstance(cause, CancelledError):
            raise Failed(f"batch {batch_id} was cancelled") from error
        raise Failed(f"batch {batch_id}: its workflow failed: {cause}") from error


def as_input(spec: BatchSpec) -> dict[str, Any]:
    """The spec as the workflow takes it: what was written, as the plain CLI sends it.

    Defaults are left to the workers, which may know fewer keys than we do.
    """
    return spec.model_dump(mode="json", exclude_unset=True)


def state_of(batch: BatchRow, counts: Counts, life: Life | None) -> str:
    """`complete`, `cancelled`, `running`, …; `life` None means that Temporal was not asked or did not answer."""
    whole = counts.planned > 0 and counts.planned == counts.admitted + counts.masked
    if batch.cancelling:
        return "cancelled" if whole and life != "running" else "cancelling"
    if whole:
        return "complete"
    if life is not None and life != "running":
        if batch.stopping:
            return "stopping" if counts.running else "stopped"
        return f"interrupted (its workflow is {life})"
    if batch.stopping:
        return "stopping"
    if batch.frozen:
        return "frozen"
    if batch.paused:
        return "paused"
    return "running" if life == "running" else "open"


def advice(batch: BatchRow, state: str) -> str | None:
    """Advice about a batch that does not continue by itself."""
    if state == "stopped" or state.startswith("interrupted"):
        return f"submit the same spec with --batch-id {batch.batch_id} to go on"
    if state in ("paused", "frozen"):
        return f"rollbook resume {batch.batch_id}"
    if state == "cancelled":
        return rerun_masked(batch.batch_id)
    return None


def rerun_masked(batch_id: str) -> str:
    """Commands that resume a cancelled batch."""
    return f"rollbook rerun {batch_id} --masked --reason … runs what is masked again"


def control_of(batch: BatchRow) -> dict[str, Any]:
    """The control flags of a batch."""
    return {
        "paused": batch.paused,
        "frozen": batch.frozen,
        "stopping": batch.stopping,
        "cancelling": batch.cancelling,
        "concurrency": batch.concurrency,
        "max_attempts": batch.max_attempts,
        "reason": batch.control_reason,
    }


def eta_s(state: str, counts: Counts, ended: int, seconds: float) -> float | None:
    """Seconds until the last rollout at the pace since the launch; None before the first end and while nothing goes on.

    While stopping, until the last *running* one: those that wait will not start.
    """
    if state not in ("running", "open", "stopping"):
        return None
    left = counts.running + (counts.waiting if state != "stopping" else 0)
    if left == 0:
        return 0.0
    return left * seconds / ended if ended and seconds > 0 else None


def age_s(since: datetime) -> float:
    """Seconds since a time."""
    return (datetime.now(UTC) - since).total_seconds()
