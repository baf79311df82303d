"""Leases of desktops. The row is written before a desktop is created, so that none can be forgotten."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from models.episode import AttemptRef, DesktopRef
from models.sanitize import sanitize
from rollbook.errors import SandboxLost
from rollbook.ledger import tables
from rollbook.ledger.fence import fence
from rollbook.ledger.records import Lease
from rollbook.ledger.store import Store, reads, writes

_COLUMNS = tuple(name for name in Lease.__slots__ if name not in ("attempt_open", "lease_expired"))


class Leases(Store):
    """Leases of desktops; times in seconds."""

    @writes
    async def sandbox_intent(
        self,
        conn: AsyncConnection,
        attempt: AttemptRef,
        run_id: str,
        *,
        sandbox_key: str,
        deployment_id: str,
        provider: str,
        lease_s: float,
    ) -> datetime:
        """Record that the desktop of an attempt is about to be created or found; repeating it renews the lease.

        Returns the time of the first such call for the attempt. Raises Fenced, and SandboxLost when the desktop was
        stopped already.
        """
        await fence(conn, attempt, run_id)
        row = {
            "sandbox_key": sandbox_key,
            "deployment_id": deployment_id,
            "provider": provider,
            "rollout_key": attempt.rollout_key,
            "attempt_index": attempt.attempt_index,
            "state": "intended",
            "lease_until": _after(lease_s),
        }
        await conn.execute(insert(tables.sandbox).values(row).on_conflict_do_nothing())
        await _update(conn, attempt, {"lease_until": _after(lease_s)})
        asked_at: datetime = (await conn.execute(select(tables.sandbox.c.created_at).where(_of(attempt)))).scalar_one()
        return asked_at

    @writes
    async def sandbox_started(
        self, conn: AsyncConnection, attempt: AttemptRef, run_id: str, desktop: DesktopRef, *, lease_s: float
    ) -> None:
        """Record that the desktop is ready; raises Fenced, and SandboxLost when the attempt had another or lost it."""
        await fence(conn, attempt, run_id)
        lease = tables.sandbox
        await _update(
            conn,
            attempt,
            {
                "state": "running",
                "sandbox_id": desktop.sandbox_id,
                "nonce": desktop.nonce,
                "isolation": func.coalesce(lease.c.isolation, desktop.isolation),
                "image_digest": func.coalesce(lease.c.image_digest, desktop.image_digest or None),
                "view_url": desktop.view_url,
                "started_at": func.coalesce(lease.c.started_at, func.now()),
                "lease_until": _after(lease_s),
            },
            func.coalesce(lease.c.sandbox_id, desktop.sandbox_id) == desktop.sandbox_id,
            func.coalesce(lease.c.nonce, desktop.nonce) == desktop.nonce,
        )

    @writes
    async def sandbox_renew(self, conn: AsyncConnection, attempt: AttemptRef, run_id: str, *, lease_s: float) -> None:
        """Keep the desktop of an open attempt for `lease_s` more seconds; raises Fenced or SandboxLost."""
        await fence(conn, attempt, run_id)
        await _update(conn, attempt, {"lease_until": _after(lease_s)})

    @reads
    async def sandbox_of(self, conn: AsyncConnection, attempt: AttemptRef) -> Lease | None:
        """The lease of an attempt, stopped or not; None if none was intended."""
        row = (await conn.execute(_leases(_of(attempt)))).mappings().first()
        return None if row is None else Lease(**row)

    @writes
    async def sandbox_stopped(self, conn: AsyncConnection, sandbox_key: str, reason: str) -> bool:
        """Record that the desktop is gone; False if that was recorded before. Not fenced: any process may stop it."""
        lease = tables.sandbox
        values = {"state": "stopped", "stopped_at": func.now(), "stop_reason": sanitize(reason)}
        result = await conn.execute(
            lease.update().where(lease.c.sandbox_key == sandbox_key, lease.c.state != "stopped").values(values)
        )
        return result.rowcount == 1

    @reads
    async def live_sandboxes(self, conn: AsyncConnection, deployment_id: str) -> list[Lease]:
        """Leases of a deployment that are not stopped, oldest first."""
        lease = tables.sandbox
        query = _leases((lease.c.deployment_id == deployment_id) & (lease.c.state != "stopped"))
        return [Lease(**row) for row in (await conn.execute(query.order_by(lease.c.created_at))).mappings()]

    @reads
    async def leases_of(self, conn: AsyncConnection, deployment_id: str, keys: list[str]) -> list[Lease]:
        """Leases of a deployment by their keys, stopped ones included."""
        lease = tables.sandbox
        query = _leases((lease.c.deployment_id == deployment_id) & lease.c.sandbox_key.in_(keys))
        return [Lease(**row) for row in (await conn.execute(query)).mappings()]

    @reads
    async def has_desktops(self, conn: AsyncConnection, batch_id: str, patience_s: float) -> bool:
        """Report if any desktop of the batch may still run; False once the batch has been whole for `patience_s`."""
        lease, row = tables.sandbox, tables.rollout
        of_batch = select(row.c.rollout_key).where(row.c.batch_id == batch_id)
        closed_at = select(tables.batch.c.closed_at).where(tables.batch.c.batch_id == batch_id).scalar_subquery()
        recent = func.coalesce(closed_at > _after(-patience_s), true())
        query = select(lease.c.sandbox_key).where(lease.c.state != "stopped", lease.c.rollout_key.in_(of_batch), recent)
        return await conn.scalar(query.limit(1)) is not None


def _after(seconds: float) -> Any:
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _of(attempt: AttemptRef) -> ColumnElement[bool]:
    lease = tables.sandbox
    return (lease.c.rollout_key == attempt.rollout_key) & (lease.c.attempt_index == attempt.attempt_index)


async def _update(
    conn: AsyncConnection, attempt: AttemptRef, values: dict[str, Any], *conditions: ColumnElement[bool]
) -> None:
    lease = tables.sandbox
    result = await conn.execute(
        lease.update().where(_of(attempt), lease.c.state != "stopped", *conditions).values(values)
    )
    if result.rowcount == 0:
        # A stopped desktop is never used again, nor replaced by another one: the attempt has lost it.
        raise SandboxLost(f"attempt {attempt.attempt_index} of {attempt.rollout_key} has no live lease of this desktop")


def _leases(condition: ColumnElement[bool]) -> Select[Any]:
    lease, end = tables.sandbox, tables.outcome
    ended = (end.c.rollout_key == lease.c.rollout_key) & (end.c.attempt_index == lease.c.attempt_index)
    return (
        select(
            *lease.c[_COLUMNS],
            end.c.rollout_key.is_(None).label("attempt_open"),
            (lease.c.lease_until < func.now()).label("lease_expired"),
        )
        .join_from(lease, end, ended, isouter=True)
        .where(condition)
    )
