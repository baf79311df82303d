"""The fence: every write of an episode names its attempt and must come from the run that claimed it.

Lock the rollout row first, then decide in separate statements: under READ COMMITTED each of them sees what was
committed before the lock was granted; a sub-select of the locking statement does not.
"""

from collections import OrderedDict
from typing import Any

from sqlalchemy import RowMapping, and_, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from models.contract import Contract
from models.episode import AttemptRef
from rollbook.errors import ConfigError, Fenced, InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.records import AttemptContext

_LOCK = (
    select(tables.rollout)
    .where(tables.rollout.c.rollout_key == bindparam("rollout_key"))
    .with_for_update(key_share=True)
)

_ended = and_(
    tables.attempt.c.rollout_key == tables.outcome.c.rollout_key,
    tables.attempt.c.attempt_index == tables.outcome.c.attempt_index,
)
_this_attempt = and_(
    tables.attempt.c.rollout_key == bindparam("rollout_key"),
    tables.attempt.c.attempt_index == bindparam("attempt_index"),
)

_OWNER = (
    select(tables.attempt.c.run_id, tables.outcome.c.termination_reason)
    .join_from(tables.attempt, tables.outcome, _ended, isouter=True)
    .where(_this_attempt)
)

_CONTEXT = (
    select(
        *tables.rollout.c["batch_id", "domain", "task_id", "sample", "task_digest", "group_id", "rollout_index"],
        *tables.rollout.c["identity_source", "sampling_event_id", "source_group_id"],
        *tables.attempt.c["run_id", "execution_id", "trajectory_rollout_id"],
        tables.outcome.c.termination_reason,
        *tables.batch.c["deployment_id", "contract", "contract_digest"],
        tables.task.c.document.label("task"),
    )
    .select_from(tables.attempt)
    .join(tables.rollout, tables.rollout.c.rollout_key == tables.attempt.c.rollout_key)
    .join(tables.batch, tables.batch.c.batch_id == tables.rollout.c.batch_id)
    .join(tables.task, tables.task.c.task_digest == tables.rollout.c.task_digest)
    .join(tables.outcome, _ended, isouter=True)
    .where(_this_attempt)
)


async def lock_rollout(conn: AsyncConnection, rollout_key: str) -> RowMapping:
    """Lock the row of a rollout until the transaction ends; raises InvalidInput for an unknown key."""
    row = (await conn.execute(_LOCK, {"rollout_key": rollout_key})).mappings().first()
    if row is None:
        raise InvalidInput(f"rollout_key: no rollout {rollout_key!r}")
    return row


async def read_batch(conn: AsyncConnection, batch_id: str) -> RowMapping:
    """The batch row as it is now; read it after the rollout row is locked."""
    return (await conn.execute(select(tables.batch).where(tables.batch.c.batch_id == batch_id))).mappings().one()


async def fence(conn: AsyncConnection, attempt: AttemptRef, run_id: str) -> RowMapping:
    """Lock the rollout and check that `run_id` owns its open, newest attempt; raises Fenced otherwise."""
    row = await lock_rollout(conn, attempt.rollout_key)
    check_owner(attempt, run_id, (await conn.execute(_OWNER, attempt.model_dump())).mappings().first())
    return row


def check_owner(attempt: AttemptRef, run_id: str, row: RowMapping | None) -> None:
    """Raise Fenced unless the attempt exists, belongs to the run and is open."""
    name = f"attempt {attempt.attempt_index} of {attempt.rollout_key}"
    if row is None:
        raise Fenced(f"{name} does not exist")
    if row["run_id"] != run_id:
        raise Fenced(f"{name} belongs to run {row['run_id']}, not to {run_id}")
    if row["termination_reason"] is not None:
        raise Fenced(f"{name} has ended ({row['termination_reason']})")


async def attempt_context(conn: AsyncConnection, attempt: AttemptRef, run_id: str) -> AttemptContext:
    """Everything an activity needs to know of its attempt; raises Fenced if the attempt is not the run's own."""
    row = (await conn.execute(_CONTEXT, attempt.model_dump())).mappings().first()
    check_owner(attempt, run_id, row)
    assert row is not None
    values = {name: value for name, value in row.items() if name not in ("run_id", "termination_reason", "contract")}
    return AttemptContext(
        rollout_key=attempt.rollout_key,
        attempt_index=attempt.attempt_index,
        contract=read_contract(row["batch_id"], row["contract"]),
        **values,
    )


def read_contract(batch_id: str, document: dict[str, Any]) -> Contract:
    """The contract of a batch that runs here; raises ConfigError when this version cannot read it."""
    try:
        return Contract.read(document)
    except ValueError as error:
        raise ConfigError(f"the contract of batch {batch_id} cannot be read ({error}): update the worker") from error


class ContextCache:
    """Contexts of attempts that were read before: they never change. The fence itself is never cached."""

    def __init__(self, size: int = 512) -> None:
        self._size = size
        self._contexts: OrderedDict[tuple[str, int, str], AttemptContext] = OrderedDict()

    def __len__(self) -> int:
        return len(self._contexts)

    async def get(self, conn: AsyncConnection, attempt: AttemptRef, run_id: str) -> AttemptContext:
        """The context of a run's own attempt; raises Fenced when it has to be read and is not the run's own."""
        key = (attempt.rollout_key, attempt.attempt_index, run_id)
        if key not in self._contexts:
            self._contexts[key] = await attempt_context(conn, attempt, run_id)
            if len(self._contexts) > self._size:
                self._contexts.popitem(last=False)
        return self._contexts[key]
