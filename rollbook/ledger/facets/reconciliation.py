"""What the Janitor asks and writes."""

from collections.abc import Iterable

from rollbook.ledger import close, reconcile
from rollbook.ledger.engine import reading, transaction
from rollbook.ledger.facets.base import Facet
from rollbook.ledger.records import Suspect


class Reconciliation(Facet):
    """What the Janitor asks and writes."""

    async def suspects(self, deployment_id: str, namespace: str, min_age_s: float, limit: int = 1000) -> list[Suspect]:
        """Rows of this deployment that claim to be under way and were quiet for `min_age_s` seconds."""
        async with reading(self.engine) as conn:
            return await reconcile.suspects(conn, deployment_id, namespace, min_age_s, limit)

    async def sighted_missing(self, rollout_key: str, run_id: str, gap_s: float = 0.0) -> int:
        """The workflow was not found; how many times in a row, looks within `gap_s` seconds counted once."""
        async with transaction(self.engine) as conn:
            return await reconcile.sighted_missing(conn, rollout_key, run_id, gap_s)

    async def sighted_alive(self, rollout_key: str, run_id: str) -> None:
        """The workflow was found."""
        async with transaction(self.engine) as conn:
            await reconcile.sighted_alive(conn, rollout_key, run_id)

    async def open_batches(
        self, deployment_id: str, namespace: str, min_age_s: float = 0.0
    ) -> list[reconcile.OpenBatch]:
        """Batches with rows that are not final; see `reconcile.open_batches`."""
        async with reading(self.engine) as conn:
            return await reconcile.open_batches(conn, deployment_id, namespace, min_age_s)

    async def open_runs(self, batch_id: str) -> list[tuple[str, str]]:
        """Rollout and run of every open attempt of a batch."""
        async with reading(self.engine) as conn:
            return await reconcile.open_runs(conn, batch_id)

    async def long_final(self, deployment_id: str, namespace: str, keys: Iterable[str], min_age_s: float) -> list[str]:
        """Rows that have been final for a while; see `reconcile.long_final`."""
        async with reading(self.engine) as conn:
            return await reconcile.long_final(conn, deployment_id, namespace, keys, min_age_s)

    async def close_reconciled(self, rollout_key: str, attempt_index: int, reason: str) -> str | None:
        """End an attempt whose workflow is gone; the rollout's state after it, None when nothing was done."""
        async with transaction(self.engine) as conn:
            return await close.close_reconciled(conn, rollout_key, attempt_index, reason)

    async def requeue(self, rollout_key: str) -> bool:
        """Back to waiting a row without open attempt whose workflow is gone; False when nothing was done."""
        async with transaction(self.engine) as conn:
            return await close.requeue(conn, rollout_key)
