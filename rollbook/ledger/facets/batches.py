"""Planning, control and the pump: a batch as a whole."""

from collections.abc import Iterable
from typing import Any

from models.batch import Control, Counts, RegisterBatch
from models.contract import Resolved
from rollbook.ledger import close, control, pump, register
from rollbook.ledger import recorded as recording
from rollbook.ledger.engine import reading, transaction
from rollbook.ledger.facets.base import Facet
from rollbook.ledger.records import BatchControl, Registered, StartRow


class Batches(Facet):
    """Planning, control and the pump: a batch as a whole."""

    async def register_batch(self, request: RegisterBatch, *, deployment_id: str, resolved: Resolved) -> Registered:
        """Plan every rollout of a batch, or find it planned; raises InvalidInput or SpecConflict."""
        async with transaction(self.engine) as conn:
            return await register.register_batch(conn, request, deployment_id=deployment_id, resolved=resolved)

    async def launched_spec(self, batch_id: str) -> dict[str, Any]:
        """The spec of the newest launch: what a contract leaves out, such as the endpoint."""
        async with reading(self.engine) as conn:
            return await recording.launched_spec(conn, batch_id)

    async def set_control(self, change: Control) -> None:
        """Write a control change."""
        async with transaction(self.engine) as conn:
            await control.set_control(conn, change)

    async def mark_cancelling(self, batch_id: str, reason: str = "", launch_id: str = "") -> None:
        """Nothing of the batch can be claimed from now on; raises Fenced when another launch than this owns it."""
        async with transaction(self.engine) as conn:
            await control.mark_cancelling(conn, batch_id, reason, launch_id)

    async def batch_control(self, batch_id: str) -> BatchControl:
        """The control columns of a batch."""
        async with reading(self.engine) as conn:
            return await control.batch_control(conn, batch_id)

    async def counts(self, batch_id: str) -> Counts:
        """The roll call in numbers."""
        async with reading(self.engine) as conn:
            return await control.counts(conn, batch_id)

    async def batch_is_whole(self, batch_id: str) -> bool:
        """Whether every planned row is final; notes when."""
        async with transaction(self.engine) as conn:
            return await control.batch_is_whole(conn, batch_id)

    async def startable(self, batch_id: str, limit: int = 1000) -> list[StartRow]:
        """Waiting rows to start now: no more than the free window, none while paused, stopping or cancelling."""
        async with reading(self.engine) as conn:
            return await pump.startable(conn, batch_id, limit)

    async def stale_queued(self, batch_id: str, older_than_s: float, limit: int = 1000) -> list[StartRow]:
        """Rows queued longer than `older_than_s` seconds ago and never claimed."""
        async with reading(self.engine) as conn:
            return await pump.stale_queued(conn, batch_id, older_than_s, limit)

    async def mark_queued(self, keys: Iterable[str], *, again: bool = False) -> list[str]:
        """waiting → queued; `again` also renews rows that are queued. Returns the keys that changed."""
        async with transaction(self.engine) as conn:
            return await pump.mark_queued(conn, keys, again=again)

    async def in_flight(self, batch_id: str) -> list[str]:
        """Keys of queued and running rows."""
        async with reading(self.engine) as conn:
            return await pump.in_flight(conn, batch_id)

    async def close_open(self, batch_id: str, reason: str, chunk: int = 1000, launch_id: str = "") -> int:
        """Close every row that is not final as cancelled, in transactions of `chunk` rows; how many were closed.

        Raises Fenced when the batch belongs to another launch than `launch_id`.
        """
        await self.mark_cancelling(batch_id, reason, launch_id)
        closed = 0
        while keys := await self._open_rows(batch_id):
            for start in range(0, len(keys), chunk):
                some = keys[start : start + chunk]
                async with transaction(self.engine) as conn:
                    closed += await close.close_some(conn, batch_id, reason, some, launch_id)
        await self.batch_is_whole(batch_id)
        return closed

    async def _open_rows(self, batch_id: str) -> list[str]:
        async with reading(self.engine) as conn:
            return await close.open_rows(conn, batch_id)
