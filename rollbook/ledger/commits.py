"""Evidence of an open attempt: model calls, turns, the evaluation. Insert or nothing, then return the stored row."""

from dataclasses import fields
from typing import Any

from sqlalchemy import RowMapping, bindparam, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from models.episode import AttemptRef, Observation
from models.evidence import ArtifactRef
from rollbook.errors import LedgerError
from rollbook.ledger import tables
from rollbook.ledger.catalog import record_artifacts
from rollbook.ledger.fence import fence
from rollbook.ledger.records import Evaluation, ModelCall, StoredCall, StoredEvaluation, StoredTurn
from rollbook.ledger.sanitize import redact_text

_CALL = tuple(one.name for one in fields(StoredCall))
DECIDES = or_(tables.model_call.c.accepted, tables.model_call.c.policy_stop_reason.is_not(None))
_EVALUATION = tuple(name for name in Evaluation.model_fields if name != "log")

# Built once: building a statement takes longer than Postgres needs to run it. They return nothing on a repeat.
_INSERT_CALL = insert(tables.model_call).on_conflict_do_nothing().returning(*tables.model_call.c[_CALL])
_INSERT_TURN = (
    insert(tables.turn)
    .values(started_at=func.least(func.now(), func.to_timestamp(bindparam("began"))))
    .on_conflict_do_nothing()
    .returning(tables.turn.c.step)
)


def _key(attempt: AttemptRef) -> dict[str, Any]:
    return {"rollout_key": attempt.rollout_key, "attempt_index": attempt.attempt_index}


def _of(table: Any, attempt: AttemptRef) -> Any:
    return (table.c.rollout_key == attempt.rollout_key) & (table.c.attempt_index == attempt.attempt_index)


async def commit_model_call(conn: AsyncConnection, attempt: AttemptRef, run_id: str, call: ModelCall) -> StoredCall:
    """Commit a call before it is acted upon; two racing tries both get what was committed first.

    A step that is decided already, by whichever call, stays decided so.
    """
    await fence(conn, attempt, run_id)
    refs = {name: getattr(call, name) for name in ("prompt", "response", "image", "tokens")}
    await record_artifacts(conn, refs.values())
    values = call.model_dump(exclude=set(refs)) | {f"{name}_sha256": _sha(ref) for name, ref in refs.items()}
    values["row_digest"] = ""
    stored = (await conn.execute(_INSERT_CALL, _key(attempt) | values)).mappings().first()
    if stored is None:
        query = select(*tables.model_call.c[_CALL]).where(
            _of(tables.model_call, attempt),
            tables.model_call.c.step == call.step,
            or_(tables.model_call.c.parse_attempt == call.parse_attempt, DECIDES),
        )
        query = query.order_by((tables.model_call.c.parse_attempt == call.parse_attempt).desc()).limit(1)
        stored = (await conn.execute(query)).mappings().one()
    return StoredCall(**stored)


async def find_model_call(conn: AsyncConnection, attempt: AttemptRef, step: int) -> StoredCall | None:
    """The call that decided a step: accepted, or the end of the episode by the policy's output. None before it."""
    call = tables.model_call
    query = (
        select(*call.c[_CALL])
        .where(_of(call, attempt), call.c.step == step)
        .where(or_(call.c.accepted, call.c.policy_stop_reason.is_not(None)))
        .order_by(call.c.parse_attempt.desc())
        .limit(1)
    )
    found = (await conn.execute(query)).mappings().first()
    return None if found is None else StoredCall(**found)


async def calls_until(conn: AsyncConnection, attempt: AttemptRef, step: int) -> list[StoredCall]:
    """Every call of an attempt up to and including a step, parser retries included, in their order."""
    call = tables.model_call
    query = select(*call.c[_CALL]).where(_of(call, attempt), call.c.step <= step)
    rows = await conn.execute(query.order_by(call.c.step, call.c.parse_attempt))
    return [StoredCall(**row) for row in rows.mappings()]


async def model_calls(conn: AsyncConnection, attempt: AttemptRef, step: int | None = None) -> list[RowMapping]:
    """All calls of an attempt, or of one step, parser retries included, in their order."""
    call = tables.model_call
    query = select(call).where(_of(call, attempt)).order_by(call.c.step, call.c.parse_attempt)
    if step is not None:
        query = query.where(call.c.step == step)
    return list((await conn.execute(query)).mappings())


async def commit_turn(
    conn: AsyncConnection,
    attempt: AttemptRef,
    run_id: str,
    *,
    step: int,
    observation: Observation,
    actions: list[dict[str, Any]],
    started_at: float,
) -> StoredTurn:
    """Commit what a step's actions did and what was seen after them; the turn that was committed first counts.

    `started_at`: Unix time of the worker, seconds; a worker whose clock runs ahead is held to the database's now.
    """
    await fence(conn, attempt, run_id)
    seen = {name: getattr(observation, name) for name in ("screenshot", "accessibility_tree", "terminal")}
    await record_artifacts(conn, seen.values())
    statuses = [action.get("status") for action in actions]
    done = redact_text(actions)
    values = {
        **_key(attempt),
        "step": step,
        **{f"{name}_sha256": _sha(ref) for name, ref in seen.items()},
        "actions": done,
        "in_doubt": statuses.count("in_doubt"),
        "raised": statuses.count("raised"),
        "began": started_at,
        "row_digest": "",
    }
    if await conn.scalar(_INSERT_TURN, values) is not None:
        return StoredTurn(step=step, observation=observation, actions=done)
    stored = await turn(conn, attempt, step)
    if stored is None:
        raise LedgerError(f"turn {step} of {attempt.rollout_key} was not stored")
    return stored


async def turn(conn: AsyncConnection, attempt: AttemptRef, step: int) -> StoredTurn | None:
    """The committed turn of a step; None before it. Step 0 is the first observation."""
    made = tables.turn
    query = select(made).where(_of(made, attempt), made.c.step == step)
    found = (await conn.execute(query)).mappings().first()
    if found is None:
        return None
    return StoredTurn(step=step, observation=await _observation(conn, found), actions=found["actions"])


async def latest_observation(conn: AsyncConnection, rollout_key: str) -> Observation | None:
    """What was last seen of a rollout, in its newest attempt that saw anything."""
    made = tables.turn
    query = (
        select(made)
        .where(made.c.rollout_key == rollout_key)
        .order_by(made.c.attempt_index.desc(), made.c.step.desc())
        .limit(1)
    )
    found = (await conn.execute(query)).mappings().first()
    return None if found is None else await _observation(conn, found)


async def commit_evaluation(
    conn: AsyncConnection, attempt: AttemptRef, run_id: str, evaluation: Evaluation
) -> StoredEvaluation:
    """Commit the evaluator's answer; the one that was committed first counts."""
    await fence(conn, attempt, run_id)
    await record_artifacts(conn, [evaluation.log])
    values = evaluation.model_dump(exclude={"log"}) | {"log_sha256": _sha(evaluation.log), "row_digest": ""}
    await conn.execute(insert(tables.evaluation).values(**_key(attempt), **values).on_conflict_do_nothing())
    stored = await find_evaluation(conn, attempt)
    if stored is None:
        raise LedgerError(f"the evaluation of {attempt.rollout_key} was not stored")
    return stored


async def find_evaluation(conn: AsyncConnection, attempt: AttemptRef) -> StoredEvaluation | None:
    """The committed evaluation of an attempt; None before it."""
    table = tables.evaluation
    found = (await conn.execute(select(table).where(_of(table, attempt)))).mappings().first()
    if found is None:
        return None
    refs = await _refs(conn, [found["log_sha256"]])
    return Evaluation(log=refs.get(found["log_sha256"]), **{name: found[name] for name in _EVALUATION})


async def _observation(conn: AsyncConnection, found: RowMapping) -> Observation:
    names = ("screenshot", "accessibility_tree", "terminal")
    refs = await _refs(conn, [found[f"{name}_sha256"] for name in names])
    return Observation(**{name: refs.get(found[f"{name}_sha256"]) for name in names})


async def _refs(conn: AsyncConnection, digests: list[str | None]) -> dict[str | None, ArtifactRef]:
    wanted = [digest for digest in digests if digest is not None]
    if not wanted:
        return {}
    artifact = tables.artifact
    query = select(*artifact.c["sha256", "size_bytes", "media_type"]).where(artifact.c.sha256.in_(wanted))
    return {row["sha256"]: ArtifactRef(**row) for row in (await conn.execute(query)).mappings()}


def _sha(ref: ArtifactRef | None) -> str | None:
    return None if ref is None else ref.sha256
