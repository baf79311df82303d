"""Identity of the rollouts of a batch: the trainer's if it gave one, else derived. Checked before anything is planned.

Unique across the ledger: the group of a sampling event belongs to one batch and one task. Who wants to sample again
relaunches that batch (the same decision) or takes a new sampling event (a new one).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from models.identity import derived_group_id, scoped_group_id
from models.spec import BatchSpec
from rollbook.errors import InvalidInput, SpecConflict
from rollbook.ledger import tables

_TAKEN = text("""
    SELECT batch_id, task_id, source_group_id FROM rollout
    WHERE sampling_event_id = :event AND source_group_id = ANY(:groups) AND batch_id <> :batch_id
    ORDER BY batch_id, task_id LIMIT 1
""").bindparams(bindparam("groups", type_=ARRAY(TEXT)))


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies the samples of one task; event and source group are None when it is derived."""

    event: str | None
    source_group: str | None
    group: str


def identities(spec: BatchSpec, task_ids: Iterable[str]) -> dict[str, Identity]:
    """The identity of each chosen task; raises InvalidInput that names the field."""
    if spec.identity is None:
        return {task_id: Identity(None, None, derived_group_id(task_id)) for task_id in task_ids}
    event = spec.identity.sampling_event_id
    try:
        groups = spec.identity.groups(task_ids)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return {task_id: Identity(event, group, scoped_group_id(event, group)) for task_id, group in groups.items()}


async def require_identity(conn: AsyncConnection, batch_id: str, chosen: dict[str, Identity]) -> None:
    """Raises SpecConflict when planned rows have another identity, or another batch has one of the groups.

    Call it with the batch row locked; two batches that take the same event at once wait for each other here.
    """
    await _require_unchanged(conn, batch_id, chosen)
    events = {identity.event for identity in chosen.values()} - {None}
    for event in events:
        await conn.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"sampling_event:{event}", 0))))
        groups = [identity.source_group for identity in chosen.values()]
        taken = (await conn.execute(_TAKEN, {"event": event, "groups": groups, "batch_id": batch_id})).first()
        if taken is not None:
            raise SpecConflict(
                f"identity: group {taken.source_group_id!r} of sampling event {event!r} belongs to batch "
                f"{taken.batch_id} (task {taken.task_id}). A retry of that decision relaunches {taken.batch_id}; "
                "a new decision needs a sampling_event_id of its own"
            )


async def _require_unchanged(conn: AsyncConnection, batch_id: str, chosen: dict[str, Identity]) -> None:
    row = tables.rollout
    query = select(row.c.task_id, row.c.sampling_event_id, row.c.source_group_id).distinct()
    now = next(iter(chosen.values())).event
    for task_id, event, group in await conn.execute(query.where(row.c.batch_id == batch_id).order_by(row.c.task_id)):
        if event != now:
            raise SpecConflict(
                f"identity.sampling_event_id: {event!r} -> {now!r}; a batch belongs to one sampling event: "
                "submit a new one under a new batch id"
            )
        if task_id in chosen and group != chosen[task_id].source_group:
            raise SpecConflict(
                f"identity: the group of task {task_id}: {group!r} -> {chosen[task_id].source_group!r}; "
                "planned rollouts keep their identity"
            )
