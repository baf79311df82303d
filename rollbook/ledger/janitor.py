"""Reconciliation: rows whose workflow is gone, workflows whose row is final, and how a row is repaired."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from models.outcome import Infra
from rollbook.ledger import tables
from rollbook.ledger.fence import lock_rollout, read_batch
from rollbook.ledger.outcomes import closed_from_outside, decide_next, record_outcome
from rollbook.ledger.records import Suspect, TemporalServer
from rollbook.ledger.sanitize import redact_text
from rollbook.ledger.sql import statements
from rollbook.ledger.store import Store, reads, writes

_SQL = statements("janitor")


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that has rows which are not final."""

    batch_id: str
    launch_id: str
    """The launch that its control belongs to."""
    paused: bool
    stopping: bool
    cancelling: bool
    control_reason: str
    in_flight: int
    """Rows that are queued or running."""
    is_quiet: bool
    """Launched so long ago that a missing workflow means something."""
    is_lost: bool
    """Launched on a Temporal server that was replaced since, so that its workflow is gone with it."""
    first_key: str
    """Its first planned rollout: a missing workflow of the batch itself is counted under this key."""


class Reconciliation(Store):
    """Queries and writes of the Janitor."""

    @reads
    async def temporal_server(self, conn: AsyncConnection, deployment_id: str, namespace: str) -> TemporalServer | None:
        """The server that a deployment's workflows live on; None before its first worker."""
        values = {"deployment_id": deployment_id, "namespace": namespace}
        row = (await conn.execute(_SQL["temporal_server"], values)).mappings().first()
        return None if row is None else TemporalServer(**row)

    @writes
    async def adopt_temporal_server(
        self,
        conn: AsyncConnection,
        deployment_id: str,
        namespace: str,
        server: TemporalServer,
        *,
        reason: str,
        adopted_by: str,
    ) -> None:
        """Record that the workflows live on `server` from now on; what was launched before is gone with the old one."""
        values = {"deployment_id": deployment_id, "namespace": namespace, "namespace_id": server.namespace_id}
        values |= {"cluster_id": server.cluster_id, "reason": redact_text(reason), "adopted_by": adopted_by}
        await conn.execute(_SQL["adopt_temporal_server"], values)

    @reads
    async def suspects(
        self, conn: AsyncConnection, deployment_id: str, namespace: str, min_age_s: float, limit: int = 1000
    ) -> list[Suspect]:
        """Queued and running rows of a deployment and namespace without a change for `min_age_s` seconds."""
        values = {"deployment_id": deployment_id, "namespace": namespace, "min_age_s": min_age_s, "limit": limit}
        return [Suspect(**row) for row in (await conn.execute(_SQL["suspects"], values)).mappings()]

    @writes
    async def count_missing(self, conn: AsyncConnection, rollout_key: str, run_id: str, gap_s: float = 0.0) -> int:
        """Count that a workflow was not found; returns how many times in a row.

        Looks within `gap_s` seconds count once. What was counted before the row was queued, claimed, ended or
        requested again no longer counts.
        """
        values = {"rollout_key": rollout_key, "run_id": run_id, "gap_s": gap_s}
        return int((await conn.execute(_SQL["count_missing"], values)).scalar_one())

    @writes
    async def clear_missing(self, conn: AsyncConnection, rollout_key: str, run_id: str) -> None:
        """Reset the count: the workflow was found."""
        await conn.execute(_SQL["clear_missing"], {"rollout_key": rollout_key, "run_id": run_id})

    @reads
    async def open_batches(
        self, conn: AsyncConnection, deployment_id: str, namespace: str, min_age_s: float = 0.0
    ) -> list[OpenBatch]:
        """Batches of a deployment and namespace with rows that are not final; `min_age_s`: see OpenBatch.is_quiet."""
        values = {"deployment_id": deployment_id, "namespace": namespace, "min_age_s": min_age_s}
        return [OpenBatch(**row) for row in (await conn.execute(_SQL["open_batches"], values)).mappings()]

    @reads
    async def open_runs(self, conn: AsyncConnection, batch_id: str) -> list[tuple[str, str]]:
        """Rollout key and run id of every open attempt of a batch."""
        return [(key, run_id) for key, run_id in await conn.execute(_SQL["open_runs"], {"batch_id": batch_id})]

    @reads
    async def long_final(
        self, conn: AsyncConnection, deployment_id: str, namespace: str, keys: Iterable[str], min_age_s: float
    ) -> list[str]:
        """Those of `keys` that belong to the deployment and have been final for `min_age_s` seconds."""
        values = {"deployment_id": deployment_id, "namespace": namespace, "keys": list(keys), "min_age_s": min_age_s}
        return list((await conn.execute(_SQL["long_final"], values)).scalars())

    @writes
    async def close_reconciled(
        self, conn: AsyncConnection, rollout_key: str, attempt_index: int, reason: str
    ) -> str | None:
        """End an attempt whose workflow is gone as `reconciled`: masked, with the score if it has one.

        Returns the state of the rollout after it (waiting while the budget lasts, else final), or None when the
        attempt is no longer the open one and nothing was done.
        """
        row = await lock_rollout(conn, rollout_key)
        if await _open_attempt(conn, rollout_key) != attempt_index:
            return None
        batch = await read_batch(conn, row["batch_id"])
        outcome = await closed_from_outside(conn, rollout_key, attempt_index, Infra.RECONCILED, "reconcile", reason)
        outcome = await decide_next(conn, row, batch, attempt_index, outcome)
        await record_outcome(conn, row, batch, attempt_index, outcome)
        return outcome.next_state

    @writes
    async def requeue(self, conn: AsyncConnection, rollout_key: str) -> bool:
        """Set a queued or running row without an open attempt back to waiting: its workflow is gone.

        False when the row has an open attempt or is final by now; then nothing was done.
        """
        row = await lock_rollout(conn, rollout_key)
        if row["state"] not in ("queued", "running") or await _open_attempt(conn, rollout_key) is not None:
            return False
        rollout = tables.rollout
        await conn.execute(rollout.update().where(rollout.c.rollout_key == rollout_key).values(state="waiting"))
        return True


async def _open_attempt(conn: AsyncConnection, rollout_key: str) -> int | None:
    attempt, outcome = tables.attempt, tables.outcome
    ended = select(outcome).where(
        outcome.c.rollout_key == rollout_key, outcome.c.attempt_index == attempt.c.attempt_index
    )
    query = select(attempt.c.attempt_index).where(attempt.c.rollout_key == rollout_key, ~ended.exists())
    index: int | None = await conn.scalar(query)
    return index
