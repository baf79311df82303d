"""The state of a batch in one word, from the ledger's facts and from whether its workflow lives."""

from datetime import UTC, datetime
from typing import Any

from models.batch import Counts
from rollbook.cli.launch import Life
from rollbook.ledger.reader import BatchRow


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
    """What to do about a batch that does not go on by itself."""
    if state == "stopped" or state.startswith("interrupted"):
        return f"submit the same spec with --batch-id {batch.batch_id} to go on"
    if state in ("paused", "frozen"):
        return f"rollbook resume {batch.batch_id}"
    if state == "cancelled":
        return rerun_masked(batch.batch_id)
    return None


def rerun_masked(batch_id: str) -> str:
    """How a cancelled batch is taken up again after all."""
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
