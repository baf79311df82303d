"""Leases of desktops. The row is written before anything is created, so that nothing can be forgotten."""

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

_COLUMNS = tuple(name for name in Lease.__slots__ if name not in ("attempt_open", "lease_expired"))


def _until(lease_s: float) -> Any:
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, lease_s)


async def sandbox_intent(
    conn: AsyncConnection,
    attempt: AttemptRef,
    run_id: str,
    *,
    sandbox_key: str,
    deployment_id: str,
    provider: str,
    lease_s: float,
) -> None:
    """About to create (or find) the desktop of an attempt; repeating it renews the lease."""
    await fence(conn, attempt, run_id)
    row = {
        "sandbox_key": sandbox_key,
        "deployment_id": deployment_id,
        "provider": provider,
        "rollout_key": attempt.rollout_key,
        "attempt_index": attempt.attempt_index,
        "state": "intended",
        "lease_until": _until(lease_s),
    }
    await conn.execute(insert(tables.sandbox).values(row).on_conflict_do_nothing())
    await _update(conn, attempt, {"lease_until": _until(lease_s)})


async def sandbox_started(
    conn: AsyncConnection, attempt: AttemptRef, run_id: str, desktop: DesktopRef, lease_s: float
) -> None:
    """The desktop of an attempt is ready. Raises SandboxLost when the attempt had another one, or has none any more."""
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
            "view_url": desktop.view_url,
            "started_at": func.coalesce(lease.c.started_at, func.now()),
            "lease_until": _until(lease_s),
        },
        func.coalesce(lease.c.sandbox_id, desktop.sandbox_id) == desktop.sandbox_id,
        func.coalesce(lease.c.nonce, desktop.nonce) == desktop.nonce,
    )


async def sandbox_renew(conn: AsyncConnection, attempt: AttemptRef, run_id: str, lease_s: float) -> None:
    """Keep the desktop of an open attempt for `lease_s` more seconds."""
    await fence(conn, attempt, run_id)
    await _update(conn, attempt, {"lease_until": _until(lease_s)})


async def _update(
    conn: AsyncConnection, attempt: AttemptRef, values: dict[str, Any], *conditions: ColumnElement[bool]
) -> None:
    lease = tables.sandbox
    mine = (lease.c.rollout_key == attempt.rollout_key) & (lease.c.attempt_index == attempt.attempt_index)
    done = await conn.execute(lease.update().where(mine, lease.c.state != "stopped", *conditions).values(values))
    if done.rowcount == 0:
        # a desktop is never used again after it was stopped, nor exchanged: the attempt has lost it
        raise SandboxLost(f"attempt {attempt.attempt_index} of {attempt.rollout_key} has no live lease of this desktop")


async def sandbox_of(conn: AsyncConnection, attempt: AttemptRef) -> Lease | None:
    """The lease of an attempt, stopped or not; None if none was intended."""
    lease = tables.sandbox
    mine = (lease.c.rollout_key == attempt.rollout_key) & (lease.c.attempt_index == attempt.attempt_index)
    found = (await conn.execute(_leases(mine))).mappings().first()
    return None if found is None else Lease(**found)


async def sandbox_stopped(conn: AsyncConnection, sandbox_key: str, reason: str) -> bool:
    """The desktop is gone. Not fenced: whoever removes it says so. False if that was known already."""
    lease = tables.sandbox
    values = {"state": "stopped", "stopped_at": func.now(), "stop_reason": sanitize(reason)}
    done = await conn.execute(
        lease.update().where(lease.c.sandbox_key == sandbox_key, lease.c.state != "stopped").values(values)
    )
    return done.rowcount == 1


async def live_sandboxes(conn: AsyncConnection, deployment_id: str) -> list[Lease]:
    """Leases of a deployment that are not stopped, oldest first."""
    lease = tables.sandbox
    query = _leases((lease.c.deployment_id == deployment_id) & (lease.c.state != "stopped"))
    return [Lease(**row) for row in (await conn.execute(query.order_by(lease.c.created_at))).mappings()]


async def leases_of(conn: AsyncConnection, deployment_id: str, keys: list[str]) -> list[Lease]:
    """Leases of a deployment by their keys, stopped ones included."""
    lease = tables.sandbox
    query = _leases((lease.c.deployment_id == deployment_id) & lease.c.sandbox_key.in_(keys))
    return [Lease(**row) for row in (await conn.execute(query)).mappings()]


async def has_desktops(conn: AsyncConnection, batch_id: str, patience_s: float) -> bool:
    """Whether any desktop of the batch is not known to be stopped; False once it has been whole for `patience_s`."""
    lease, row = tables.sandbox, tables.rollout
    mine = select(row.c.rollout_key).where(row.c.batch_id == batch_id)
    closed_at = select(tables.batch.c.closed_at).where(tables.batch.c.batch_id == batch_id).scalar_subquery()
    fresh = func.coalesce(closed_at > func.now() - func.make_interval(0, 0, 0, 0, 0, 0, patience_s), true())
    query = select(lease.c.sandbox_key).where(lease.c.state != "stopped", lease.c.rollout_key.in_(mine), fresh).limit(1)
    return await conn.scalar(query) is not None


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
