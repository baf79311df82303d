"""Claim: who may try a rollout now, and as which attempt."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import RowMapping, select
from sqlalchemy.ext.asyncio import AsyncConnection

from models.contract import Contract
from models.outcome import Infra
from rollbook.errors import Fenced
from rollbook.ledger import tables
from rollbook.ledger.ending import closed, read_batch, record_end
from rollbook.ledger.fence import lock_rollout, read_contract
from rollbook.ledger.identity import trajectory_rollout_id
from rollbook.ledger.records import Claim


@dataclass(frozen=True, slots=True)
class _Made:
    """An attempt so far."""

    attempt_index: int
    run_id: str
    claim: int
    closed_by: str | None
    """None while it is open."""


async def claim(conn: AsyncConnection, rollout_key: str, run_id: str, workflow_id: str, n: int) -> Claim:
    """Claim number `n` of a run. Repeating it returns the same attempt while that is open and the newest.

    Raises Fenced for a run that another one has overtaken, or for a claim that the run has left behind.
    """
    row = await lock_rollout(conn, rollout_key)
    attempts = await _attempts(conn, rollout_key)
    batch = await read_batch(conn, row["batch_id"])
    newest = attempts[-1] if attempts else None
    if newest and newest.run_id == run_id and newest.claim == n and newest.closed_by is None:
        ids = await _ids(conn, rollout_key, newest.attempt_index)
        contract = read_contract(row["batch_id"], batch["contract"])
        return await _answer(conn, row, batch, contract, newest.attempt_index, ids)
    _refuse_overtaken(rollout_key, attempts, run_id, n)
    if row["state"] == "final":
        return Claim(status="final", rollout_key=rollout_key)
    if batch["stopping"] or batch["cancelling"]:
        if newest is None or newest.closed_by is not None:
            await _update(conn, rollout_key, state="waiting")
        return Claim(status="stopping", rollout_key=rollout_key)
    if newest and newest.closed_by is None:
        detail = f"run {run_id} claimed the rollout while this attempt was open"
        end = await closed(conn, rollout_key, newest.attempt_index, Infra.SUPERSEDED, "claim", detail)
        await record_end(conn, row, batch, newest.attempt_index, replace(end, next_state="running"))
    contract = read_contract(row["batch_id"], batch["contract"])
    index = newest.attempt_index + 1 if newest else 1
    ids = {
        "execution_id": uuid.uuid4(),
        "trajectory_rollout_id": trajectory_rollout_id(row, contract.policy.name, index),
    }
    await conn.execute(
        tables.attempt.insert().values(
            rollout_key=rollout_key,
            attempt_index=index,
            workflow_id=workflow_id,
            run_id=run_id,
            claim=n,
            row_digest="",
            **ids,
        )
    )
    await _update(conn, rollout_key, state="running", current_attempt=index)
    return await _answer(conn, row, batch, contract, index, ids)


async def _attempts(conn: AsyncConnection, rollout_key: str) -> list[_Made]:
    made, end = tables.attempt, tables.outcome
    query = (
        select(*made.c["attempt_index", "run_id", "claim"], end.c.closed_by)
        .join_from(
            made,
            end,
            (made.c.rollout_key == end.c.rollout_key) & (made.c.attempt_index == end.c.attempt_index),
            isouter=True,
        )
        .where(made.c.rollout_key == rollout_key)
        .order_by(made.c.attempt_index)
    )
    return [_Made(**found) for found in (await conn.execute(query)).mappings()]


def _refuse_overtaken(rollout_key: str, attempts: list[_Made], run_id: str, n: int) -> None:
    own = [attempt for attempt in attempts if attempt.run_id == run_id]
    if not own:
        return
    if own[-1].claim >= n:
        raise Fenced(f"{rollout_key}: run {run_id} made claim {own[-1].claim} already, claim {n} comes too late")
    if own[-1] is not attempts[-1]:
        raise Fenced(f"{rollout_key}: run {attempts[-1].run_id} has taken over from run {run_id}")
    if own[-1].closed_by not in (None, "episode"):
        raise Fenced(f"{rollout_key}: the attempt of run {run_id} was closed from outside ({own[-1].closed_by})")


async def _update(conn: AsyncConnection, rollout_key: str, **values: object) -> None:
    row = tables.rollout
    await conn.execute(row.update().where(row.c.rollout_key == rollout_key).values(**values))


async def _ids(conn: AsyncConnection, rollout_key: str, index: int) -> Mapping[str, Any]:
    made = tables.attempt
    query = select(*made.c["execution_id", "trajectory_rollout_id"]).where(
        made.c.rollout_key == rollout_key, made.c.attempt_index == index
    )
    return dict((await conn.execute(query)).mappings().one())


async def _answer(
    conn: AsyncConnection,
    row: RowMapping,
    batch: RowMapping,
    contract: Contract,
    index: int,
    ids: Mapping[str, Any],
) -> Claim:
    task = tables.task
    document = await conn.scalar(select(task.c.document).where(task.c.task_digest == row["task_digest"]))
    return Claim(
        status="claimed",
        attempt_index=index,
        document=document or {},
        policy=contract.policy.name,
        contract=contract,
        **{name: row[name] for name in ("rollout_key", "batch_id", "domain", "task_id", "sample", "task_digest")},
        **{name: batch[name] for name in ("contract_digest", "max_attempts")},
        group_id=row["group_id"],
        **ids,
    )
