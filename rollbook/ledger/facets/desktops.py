"""Leases of desktops."""

from models.episode import AttemptRef, DesktopRef
from rollbook.ledger import sandboxes
from rollbook.ledger.engine import reading, transaction
from rollbook.ledger.facets.base import Facet
from rollbook.ledger.records import Lease


class Desktops(Facet):
    """Leases of desktops."""

    async def sandbox_intent(
        self,
        attempt: AttemptRef,
        run_id: str,
        *,
        sandbox_key: str,
        deployment_id: str,
        provider: str,
        lease_s: float,
    ) -> None:
        """About to create or find the desktop of an attempt; raises SandboxLost when it was stopped already."""
        async with transaction(self.engine) as conn:
            await sandboxes.sandbox_intent(
                conn,
                attempt,
                run_id,
                sandbox_key=sandbox_key,
                deployment_id=deployment_id,
                provider=provider,
                lease_s=lease_s,
            )

    async def sandbox_started(self, attempt: AttemptRef, run_id: str, desktop: DesktopRef, *, lease_s: float) -> None:
        """The desktop is ready; raises SandboxLost when it was stopped meanwhile."""
        async with transaction(self.engine) as conn:
            await sandboxes.sandbox_started(conn, attempt, run_id, desktop, lease_s)

    async def sandbox_renew(self, attempt: AttemptRef, run_id: str, *, lease_s: float) -> None:
        """Keep the desktop for `lease_s` more seconds."""
        async with transaction(self.engine) as conn:
            await sandboxes.sandbox_renew(conn, attempt, run_id, lease_s)

    async def sandbox_of(self, attempt: AttemptRef) -> Lease | None:
        """The lease of an attempt, stopped or not."""
        async with reading(self.engine) as conn:
            return await sandboxes.sandbox_of(conn, attempt)

    async def sandbox_stopped(self, sandbox_key: str, reason: str) -> bool:
        """The desktop is gone; False if that was known."""
        async with transaction(self.engine) as conn:
            return await sandboxes.sandbox_stopped(conn, sandbox_key, reason)

    async def has_desktops(self, batch_id: str, patience_s: float) -> bool:
        """Whether any desktop of the batch is not known to be stopped; not asked any more after `patience_s`."""
        async with reading(self.engine) as conn:
            return await sandboxes.has_desktops(conn, batch_id, patience_s)

    async def leases_of(self, deployment_id: str, keys: list[str]) -> list[Lease]:
        """Leases of a deployment by their keys, stopped ones included."""
        async with transaction(self.engine) as conn:
            return await sandboxes.leases_of(conn, deployment_id, keys)

    async def live_sandboxes(self, deployment_id: str) -> list[Lease]:
        """Leases of a deployment that are not stopped."""
        async with reading(self.engine) as conn:
            return await sandboxes.live_sandboxes(conn, deployment_id)
