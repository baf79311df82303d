"""A batch while it runs: its control, the window of rollouts that may start, and its cancellation."""

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any

from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from models.admission import RECONCILED_POLICY, SAMPLE_MASKED, TRAINING_POLICY
from models.batch import Control
from models.contract import RecordedContract
from models.identity import trajectory_rollout_id
from models.outcome import Infra
from models.sanitize import sanitize
from rollbook.errors import Fenced, InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.completion import Completion, Keep, complete, completions_of
from rollbook.ledger.fence import read_batch
from rollbook.ledger.records import BatchControl, StartRow
from rollbook.ledger.sanitize import redact_text
from rollbook.ledger.sql import statements
from rollbook.ledger.store import Store, reads, writes

_SQL = statements("control")

REFUSALS = 3
"""Rollouts that a model server may refuse before their batch is stopped."""

FAILURES = 3
"""Failed calls without an answer in between that mean that a model server is away."""

HELD = "nothing is started: "
"""Beginning of the reason that the pump gives: it replaces and removes no other."""


class BatchControls(Store):
    """Control, window and cancellation of batches."""

    @writes
    async def set_control(self, conn: AsyncConnection, change: Control) -> None:
        """Write a control change, which the pump and `claim` read. Repeating it changes nothing."""
        values = _columns(change)
        if change.reason or change.verb in ("resume", "stop"):  # set_concurrency keeps the reason of a pause
            values["control_reason"] = sanitize(change.reason)
        await _update(conn, change.batch_id, change.launch_id, values)

    @writes
    async def mark_cancelling(
        self, conn: AsyncConnection, batch_id: str, reason: str = "", launch_id: str = ""
    ) -> None:
        """Refuse every further claim of the batch; its open rows are about to be closed.

        Raises Fenced when the batch belongs to another launch than `launch_id`.
        """
        await _update(conn, batch_id, launch_id, {"cancelling": True, "control_reason": sanitize(reason)})

    @writes
    async def stop_when_refused(self, conn: AsyncConnection, batch_id: str, detail: str) -> bool:
        """Stop the batch when the model server has refused the first few of its rollouts; returns if it did.

        The refusal would meet every other rollout too. Repeating it changes nothing: rows are counted.
        """
        refusals = await conn.scalar(_SQL["refusals"], {"batch_id": batch_id})
        if refusals is None or refusals < REFUSALS:
            return False
        said = f"stopped: the model server refused {refusals} rollouts: {redact_text(detail)[:400]}"
        await _update(conn, batch_id, "", {"stopping": True, "control_reason": said})
        return True

    @reads
    async def endpoint_trouble(self, conn: AsyncConnection, batch_id: str) -> str:
        """Words about a model server that is away, empty while it answers.

        Away: `FAILURES` calls of running attempts failed for want of a working server, of whatever batch of the
        deployment that uses the endpoint, and none was answered since.
        """
        row = (await conn.execute(_SQL["endpoint_trouble"], {"batch_id": batch_id})).mappings().one()
        if row["failures"] < FAILURES:
            return ""
        since = row["since"].astimezone(UTC).strftime("%H:%M:%S")
        return f"no answer since {since} UTC, {row['rollouts']} running rollouts wait; last: {row['detail'][:300]}"

    @writes
    async def hold(self, conn: AsyncConnection, batch_id: str, reason: str) -> None:
        """Keep with the batch why nothing is started now, in words that begin with `HELD`; empty when something is."""
        words = {"batch_id": batch_id, "reason": sanitize(redact_text(reason))[:500], "mark": HELD}
        await conn.execute(_SQL["hold"], words)

    @reads
    async def batch_control(self, conn: AsyncConnection, batch_id: str) -> BatchControl:
        """The control columns of a batch; raises InvalidInput."""
        row = (await conn.execute(select(tables.batch).where(tables.batch.c.batch_id == batch_id))).mappings().first()
        if row is None:
            raise InvalidInput(f"batch_id: no batch {batch_id!r}")
        return BatchControl(
            reason=row["control_reason"],
            **{name: row[name] for name in BatchControl.__slots__ if name in row},
        )

    @reads
    async def deployment_of(self, conn: AsyncConnection, batch_id: str) -> str | None:
        """The deployment that runs a batch; None for an unknown batch."""
        owner = await conn.scalar(select(tables.batch.c.deployment_id).where(tables.batch.c.batch_id == batch_id))
        return None if owner is None else str(owner)

    @writes
    async def batch_is_whole(self, conn: AsyncConnection, batch_id: str, keep: Keep | None = None) -> bool:
        """Report if every planned row is final, and record the time and the batch's digest when it is.

        `keep` puts the record behind the digest into the artifact store.
        """
        if await has_open_rows(conn, batch_id):
            return False
        batch = tables.batch
        # Once more under the lock: a rerun or a registration may have reopened the batch in between.
        await conn.execute(select(batch.c.batch_id).where(batch.c.batch_id == batch_id).with_for_update(key_share=True))
        if await has_open_rows(conn, batch_id):
            return False
        closed = await conn.execute(
            batch.update().where(batch.c.batch_id == batch_id, batch.c.closed_at.is_(None)).values(closed_at=func.now())
        )
        if closed.rowcount:
            await complete(conn, batch_id, keep)
        return True

    @reads
    async def completions(self, conn: AsyncConnection, batch_id: str) -> list[Completion]:
        """The completions of a batch, the first one first."""
        return await completions_of(conn, batch_id)

    @reads
    async def startable(self, conn: AsyncConnection, batch_id: str, limit: int = 1000) -> list[StartRow]:
        """Waiting rows to start now, in plan order: at most the free window, none while paused or stopping."""
        rows = await conn.execute(_SQL["startable"], {"batch_id": batch_id, "limit": limit})
        return [StartRow(**row) for row in rows.mappings()]

    @reads
    async def stale_queued(
        self, conn: AsyncConnection, batch_id: str, older_than_s: float, limit: int = 1000
    ) -> list[StartRow]:
        """Rows that were queued more than `older_than_s` seconds ago and never claimed; starting them again is safe.

        Also while the batch is stopping: the claim then puts the row back to waiting, so that the stop can finish.
        """
        values = {"batch_id": batch_id, "older_than_s": older_than_s, "limit": limit}
        return [StartRow(**row) for row in (await conn.execute(_SQL["stale_queued"], values)).mappings()]

    @writes
    async def mark_queued(self, conn: AsyncConnection, keys: Iterable[str], *, again: bool = False) -> list[str]:
        """waiting → queued, after the Episode was started. Returns the keys that changed.

        Left alone: rows that went on in between, and waiting rows of a batch that is stopping (a refused claim has put
        them back, and no Episode will come for them). `again` renews the time of rows that are queued already.
        """
        states = ["waiting", "queued"] if again else ["waiting"]
        return list((await conn.execute(_SQL["mark_queued"], {"keys": list(keys), "states": states})).scalars())

    @reads
    async def in_flight(self, conn: AsyncConnection, batch_id: str) -> list[str]:
        """Keys of the rows that are queued or running: the episodes a cancel must reach."""
        row = tables.rollout
        query = (
            select(row.c.rollout_key)
            .where(row.c.batch_id == batch_id, row.c.state.in_(("queued", "running")))
            .order_by(row.c.rollout_key)
        )
        return list((await conn.scalars(query)).all())

    async def close_open(
        self, batch_id: str, reason: str, chunk: int = 1000, launch_id: str = "", keep: Keep | None = None
    ) -> int:
        """Close every row that is not final as cancelled, in transactions of `chunk` rows; returns how many.

        Raises Fenced when the batch belongs to another launch than `launch_id`. `keep`: see `batch_is_whole`.
        """
        await self.mark_cancelling(batch_id, reason, launch_id)
        closed = 0
        while keys := await self._open_rows(batch_id):
            for start in range(0, len(keys), chunk):
                closed += await self._close_rows(batch_id, reason, keys[start : start + chunk], launch_id)
        await self.batch_is_whole(batch_id, keep)
        return closed

    @reads
    async def _open_rows(self, conn: AsyncConnection, batch_id: str) -> list[str]:
        # Listed once for many transactions: searching for the next open row would read all that were closed before it.
        return list((await conn.execute(_SQL["open_rows"], {"batch_id": batch_id})).scalars())

    @writes
    async def _close_rows(
        self, conn: AsyncConnection, batch_id: str, reason: str, candidates: Sequence[str], launch_id: str
    ) -> int:
        keys = list((await conn.execute(_SQL["lock_open_rows"], {"keys": list(candidates)})).scalars())
        if not keys:
            return 0
        batch = await read_batch(conn, batch_id)
        check_launch(batch_id, batch["launch_id"], launch_id)
        rows = list((await conn.execute(_SQL["rows_to_close"], {"keys": keys})).mappings())
        # Every final row has an attempt, so a row that has no open one gets one here.
        contract = RecordedContract.read(batch["contract"])
        await _insert_attempts(conn, contract.policy.name, [row for row in rows if not row["is_open"]])
        values: dict[str, Any] = {
            "keys": [row["rollout_key"] for row in rows],
            "indexes": [(row["current_attempt"] or 0) + (not row["is_open"]) for row in rows],
            "keeps": [row["keeps_selection"] for row in rows],
            "reason": Infra.CANCELLED.value,
            "policy_id": RECONCILED_POLICY,
            "training_policy_id": TRAINING_POLICY,
            "training_reason": SAMPLE_MASKED,
            "detail": redact_text(reason)[:2000],
            "reward_mode": contract.reward_mode,
        }
        for name in ("end_attempts", "mask_rows", "mask_for_training", "close_rows"):
            await conn.execute(_SQL[name], values)
        return len(rows)


async def has_open_rows(conn: AsyncConnection, batch_id: str) -> bool:
    """Report if any planned row is not final."""
    return bool(await conn.scalar(_SQL["has_open_rows"], {"batch_id": batch_id}))


def check_launch(batch_id: str, current: str, launch_id: str) -> None:
    """Raise Fenced unless `launch_id` is the current launch; an empty one stands for any."""
    if launch_id and launch_id != current:
        raise Fenced(f"batch {batch_id} belongs to launch {current}, not to {launch_id}")


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


async def _update(conn: AsyncConnection, batch_id: str, launch_id: str, values: dict[str, Any]) -> None:
    batch = tables.batch
    current = await conn.scalar(
        select(batch.c.launch_id).where(batch.c.batch_id == batch_id).with_for_update(key_share=True)
    )
    if current is None:
        raise InvalidInput(f"batch_id: no batch {batch_id!r}")
    # An activity that was delayed for long must not change the control of a later launch.
    check_launch(batch_id, current, launch_id)
    await conn.execute(batch.update().where(batch.c.batch_id == batch_id).values(values))


async def _insert_attempts(conn: AsyncConnection, policy_name: str, rows: list[RowMapping]) -> None:
    if not rows:
        return
    indexes = [(row["current_attempt"] or 0) + 1 for row in rows]
    values = {
        "keys": [row["rollout_key"] for row in rows],
        "indexes": indexes,
        "executions": [uuid.uuid4() for _ in rows],
        "trajectories": [
            trajectory_rollout_id(row, policy_name, index) for row, index in zip(rows, indexes, strict=True)
        ],
    }
    await conn.execute(_SQL["insert_closed_attempts"], values)
