"""The ledger as it was at one moment: for whatever reads more than once and must not mix two states of a batch."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rollbook.ledger import recorded as recording
from rollbook.ledger.recorded import Recorded, Row

_SETTINGS = (
    "TRANSACTION READ ONLY",
    "LOCAL idle_in_transaction_session_timeout = '15min'",  # between two reads the caller writes files
)


class Snapshot:
    """Reads of one transaction: what is decided, rerun or finished meanwhile is in none of them."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def batch_of(self, batch_id: str) -> Row:
        """A batch with its contract; raises InvalidInput."""
        return await recording.batch_of(self._conn, batch_id)

    async def rollouts_of(self, batch_id: str) -> list[Row]:
        """The planned rollouts of a batch, in plan order; raises InvalidInput."""
        return await recording.rollouts_of(self._conn, batch_id)

    async def members_of(self, batch_id: str) -> dict[str, Row]:
        """Group statistics of every final rollout of a batch, by its key."""
        return await recording.members_of(self._conn, batch_id)

    async def planned_rollout(self, rollout_key: str) -> Row:
        """A planned row with contract and task document, attempted or not; raises InvalidInput."""
        return await recording.planned_rollout(self._conn, rollout_key)

    async def recorded(self, rollout_key: str, attempt: int | None = None) -> Recorded:
        """Everything about one attempt, the selected one by default; raises InvalidInput."""
        return await recording.recorded(self._conn, rollout_key, attempt)


@asynccontextmanager
async def snapshot(engine: AsyncEngine) -> AsyncIterator[Snapshot]:
    """One read-only transaction (REPEATABLE READ). While it is open Postgres keeps old row versions: publish after it.

    It takes no lock: nobody waits for it, and it waits for nobody.
    """
    async with engine.connect() as conn:
        await conn.execution_options(isolation_level="REPEATABLE READ")
        async with conn.begin():
            for setting in _SETTINGS:
                await conn.execute(text(f"SET {setting}"))
            yield Snapshot(conn)
