"""Control and counts of a batch."""

from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from models.batch import Control, Counts
from models.sanitize import sanitize
from rollbook.errors import Fenced, InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.records import BatchControl

_COUNTS = text("""
    SELECT count(*) AS planned,
           count(*) FILTER (WHERE state = 'waiting') AS waiting,
           count(*) FILTER (WHERE state IN ('queued', 'running')) AS running,
           count(*) FILTER (WHERE state = 'final' AND admitted) AS admitted,
           count(*) FILTER (WHERE state = 'final' AND NOT coalesce(admitted, false)) AS masked
    FROM rollout LEFT JOIN current_admission AS decision
        ON decision.rollout_key = rollout.rollout_key AND decision.attempt_index = rollout.selected_attempt
        AND decision.scope = 'runtime'
    WHERE batch_id = :batch_id
""")


# Two questions, one per partial index: asked as state <> 'final' it would read every final row of the batch.
_ANY_OPEN = text("""
    SELECT EXISTS (SELECT FROM rollout WHERE batch_id = :batch_id AND state = 'waiting')
        OR EXISTS (SELECT FROM rollout WHERE batch_id = :batch_id AND state IN ('queued', 'running'))
""")


async def set_control(conn: AsyncConnection, change: Control) -> None:
    """Write a control change; the pump and `claim` read it. Repeating it changes nothing."""
    values = _columns(change)
    if change.reason or change.verb in ("resume", "stop"):  # set_concurrency says nothing about why it is paused
        values["control_reason"] = sanitize(change.reason)
    await _update(conn, change.batch_id, change.launch_id, values)


def _columns(change: Control) -> dict[str, Any]:
    if change.verb == "pause":
        return {"paused": True, "frozen": change.freeze}
    if change.verb == "resume":
        return {"paused": False, "frozen": False}
    if change.verb == "stop":
        return {"stopping": True}
    if change.concurrency is None or change.concurrency < 1:
        raise InvalidInput("concurrency: give a number of at least 1")
    return {"concurrency": change.concurrency}


async def mark_cancelling(conn: AsyncConnection, batch_id: str, reason: str, launch_id: str = "") -> None:
    """From now on nothing of the batch can be claimed; its open rows are about to be closed."""
    await _update(conn, batch_id, launch_id, {"cancelling": True, "control_reason": sanitize(reason)})


async def _update(conn: AsyncConnection, batch_id: str, launch_id: str, values: dict[str, Any]) -> None:
    """Raises Fenced when the batch is another launch's: an activity that was long asleep must not speak for it."""
    batch = tables.batch
    found = await conn.scalar(
        select(batch.c.launch_id).where(batch.c.batch_id == batch_id).with_for_update(key_share=True)
    )
    if found is None:
        raise InvalidInput(f"batch_id: no batch {batch_id!r}")
    check_launch(batch_id, found, launch_id)
    await conn.execute(batch.update().where(batch.c.batch_id == batch_id).values(values))


def check_launch(batch_id: str, current: str, speaking: str) -> None:
    """Raises Fenced unless the launch that speaks is the current one; an empty one speaks for any."""
    if speaking and speaking != current:
        raise Fenced(f"batch {batch_id} belongs to launch {current}, not to {speaking}")


async def batch_control(conn: AsyncConnection, batch_id: str) -> BatchControl:
    """The control columns of a batch."""
    row = (await conn.execute(select(tables.batch).where(tables.batch.c.batch_id == batch_id))).mappings().first()
    if row is None:
        raise InvalidInput(f"batch_id: no batch {batch_id!r}")
    return BatchControl(
        reason=row["control_reason"],
        **{name: row[name] for name in BatchControl.__slots__ if name in row},
    )


async def counts(conn: AsyncConnection, batch_id: str) -> Counts:
    """The roll call in numbers: planned = admitted + masked + running (queued included) + waiting."""
    return Counts(**(await conn.execute(_COUNTS, {"batch_id": batch_id})).mappings().one())


async def has_open_rows(conn: AsyncConnection, batch_id: str) -> bool:
    """Whether any planned row is not final."""
    return bool(await conn.scalar(_ANY_OPEN, {"batch_id": batch_id}))


async def batch_is_whole(conn: AsyncConnection, batch_id: str) -> bool:
    """Whether every planned row is final; notes the time when it is."""
    if await conn.scalar(_ANY_OPEN, {"batch_id": batch_id}):
        return False
    batch = tables.batch
    # once more under the lock: a rerun or a registration may have reopened it meanwhile
    await conn.execute(select(batch.c.batch_id).where(batch.c.batch_id == batch_id).with_for_update(key_share=True))
    if await conn.scalar(_ANY_OPEN, {"batch_id": batch_id}):
        return False
    await conn.execute(
        batch.update().where(batch.c.batch_id == batch_id, batch.c.closed_at.is_(None)).values(closed_at=func.now())
    )
    return True
