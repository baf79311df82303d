"""One attempt from its claim to its end: claim, model calls, turns, evaluation, finalize.

Evidence is inserted once; a repeated commit returns the stored row. Every write passes the fence.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import RowMapping, Table, bindparam, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from models.contract import Contract
from models.episode import AttemptRef, Finalized, FinalizeRequest, Observation
from models.evidence import ArtifactRef
from models.identity import trajectory_rollout_id
from models.outcome import Infra
from rollbook.errors import Fenced, LedgerConflict, LedgerError
from rollbook.ledger import tables
from rollbook.ledger.catalog import insert_artifacts
from rollbook.ledger.fence import (
    ContextCache,
    attempt_context,
    check_owner,
    fence,
    lock_rollout,
    read_batch,
    read_contract,
)
from rollbook.ledger.outcomes import (
    PendingOutcome,
    check_evidence,
    closed_from_outside,
    decide_next,
    record_outcome,
)
from rollbook.ledger.records import (
    AttemptContext,
    CallRecord,
    Claim,
    Evaluation,
    Examination,
    ModelCall,
    Phase,
    StepSoFar,
    StoredEvaluation,
    StoredTurn,
)
from rollbook.ledger.sanitize import redact_text
from rollbook.ledger.sql import statements
from rollbook.ledger.store import Store, reads, writes

_SQL = statements("attempts")
_CALL = CallRecord.__slots__
_EVALUATION = tuple(name for name in Evaluation.model_fields if name != "log")
_ARTIFACTS_OF_CALL = ("prompt", "response", "image", "tokens")
_ARTIFACTS_OF_TURN = ("screenshot", "accessibility_tree", "terminal")

# Built once: building a statement takes longer than Postgres needs to run it. They return nothing on a repeat.
_INSERT_CALL = insert(tables.model_call).on_conflict_do_nothing().returning(*tables.model_call.c[_CALL])
_INSERT_TURN = (
    insert(tables.turn)
    # A worker whose clock runs ahead is limited to the database's now.
    .values(started_at=func.least(func.now(), func.to_timestamp(bindparam("began"))))
    .on_conflict_do_nothing()
    .returning(tables.turn.c.step)
)

_COMPARED = (
    "evaluation_completed",
    "infrastructure_failure_reason",
    "terminal_action",
    "environment_done",
    "horizon_reached",
    "policy_stop_reason",
    "guest_failed",
    "steps",
    "detail",
    "score",
)
"""Columns in which a repeated end must agree with the recorded one."""


@dataclass(frozen=True, slots=True)
class _Claimed:
    """An attempt of the rollout that is claimed."""

    attempt_index: int
    run_id: str
    claim: int
    closed_by: str | None
    """None while it is open."""


class Attempts(Store):
    """One attempt from its claim to its end.

    `attempt` and `run_id` together are the fence: writes of an episode raise Fenced when another attempt is current.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        self._contexts = ContextCache()

    @writes
    async def claim(self, conn: AsyncConnection, rollout_key: str, run_id: str, workflow_id: str, n: int) -> Claim:
        """Claim a rollout as claim number `n` of a run: the answer is the attempt, or `final`, or `stopping`.

        Repeating it returns the same attempt while that is open and the newest. Raises Fenced for a run that another
        one has overtaken, and for a claim that is older than the run's latest.
        """
        row = await lock_rollout(conn, rollout_key)
        attempts = await _attempts_of(conn, rollout_key)
        batch = await read_batch(conn, row["batch_id"])
        newest = attempts[-1] if attempts else None
        is_open = newest is not None and newest.closed_by is None
        if newest and is_open and (newest.run_id, newest.claim) == (run_id, n):
            contract = read_contract(row["batch_id"], batch["contract"])
            return await _claimed(conn, row, batch, contract, newest.attempt_index)
        _check_overtaken(rollout_key, attempts, run_id, n)
        if row["state"] == "final":
            return Claim(status="final", rollout_key=rollout_key)
        if batch["stopping"] or batch["cancelling"]:
            if not is_open:
                await _update_rollout(conn, rollout_key, state="waiting")
            return Claim(status="stopping", rollout_key=rollout_key)
        if newest and is_open:
            detail = f"run {run_id} claimed the rollout while this attempt was open"
            outcome = await closed_from_outside(
                conn, rollout_key, newest.attempt_index, Infra.SUPERSEDED, "claim", detail
            )
            await record_outcome(conn, row, batch, newest.attempt_index, replace(outcome, next_state="running"))
        contract = read_contract(row["batch_id"], batch["contract"])
        index = newest.attempt_index + 1 if newest else 1
        await conn.execute(
            tables.attempt.insert().values(
                rollout_key=rollout_key,
                attempt_index=index,
                workflow_id=workflow_id,
                run_id=run_id,
                claim=n,
                row_digest="",
                execution_id=uuid.uuid4(),
                trajectory_rollout_id=trajectory_rollout_id(row, contract.policy.name, index),
            )
        )
        await _update_rollout(conn, rollout_key, state="running", current_attempt=index)
        return await _claimed(conn, row, batch, contract, index)

    @reads
    async def attempt_context(self, conn: AsyncConnection, attempt: AttemptRef, run_id: str) -> AttemptContext:
        """Everything an activity needs to know of its attempt; raises Fenced."""
        return await attempt_context(conn, attempt, run_id)

    @reads
    async def step(self, conn: AsyncConnection, attempt: AttemptRef, run_id: str, step: int) -> StepSoFar:
        """The attempt and what is committed of one of its steps; raises Fenced.

        Needs no transaction: the commit that follows checks the fence again, under the lock.
        """
        context = await self._contexts.get(conn, attempt, run_id)
        values = attempt.model_dump() | {"step": step}
        row = (await conn.execute(_SQL["step"], values)).mappings().first()
        check_owner(attempt, run_id, row)
        assert row is not None
        return StepSoFar(
            context=context,
            call=None if row["step"] is None else CallRecord.of(row),
            turn=await _turn(conn, attempt, step) if row["acted"] else None,
        )

    @writes
    async def commit_model_call(
        self, conn: AsyncConnection, attempt: AttemptRef, run_id: str, call: ModelCall
    ) -> CallRecord:
        """Commit a call of the policy before it is acted upon; two racing tries both get the first committed one.

        A step that is decided already, by any call, stays decided so.
        """
        await fence(conn, attempt, run_id)
        refs = {name: getattr(call, name) for name in _ARTIFACTS_OF_CALL}
        await insert_artifacts(conn, refs.values())
        values = call.model_dump(exclude=set(refs)) | {f"{name}_sha256": _sha(ref) for name, ref in refs.items()}
        stored = (
            (await conn.execute(_INSERT_CALL, attempt.model_dump() | values | {"row_digest": ""})).mappings().first()
        )
        if stored is None:
            table = tables.model_call
            query = select(*table.c[_CALL]).where(
                _of(table, attempt),
                table.c.step == call.step,
                or_(table.c.parse_attempt == call.parse_attempt, table.c.decides),
            )
            query = query.order_by((table.c.parse_attempt == call.parse_attempt).desc()).limit(1)
            stored = (await conn.execute(query)).mappings().one()
        return CallRecord.of(stored)

    @reads
    async def find_model_call(self, conn: AsyncConnection, attempt: AttemptRef, step: int) -> CallRecord | None:
        """The call that decided a step; None before it."""
        call = tables.model_call
        query = select(*call.c[_CALL]).where(_of(call, attempt), call.c.step == step, call.c.decides)
        row = (await conn.execute(query)).mappings().first()
        return None if row is None else CallRecord.of(row)

    async def model_call(self, attempt: AttemptRef, step: int) -> CallRecord:
        """The call that decided a step; raises LedgerError when there is none."""
        call = await self.find_model_call(attempt, step)
        if call is None:
            raise LedgerError(f"step {step} of {attempt.rollout_key} was not decided")
        return call

    @reads
    async def calls_until(self, conn: AsyncConnection, attempt: AttemptRef, step: int) -> list[CallRecord]:
        """Every call of an attempt up to and including a step, parser retries included, in their order."""
        call = tables.model_call
        query = select(*call.c[_CALL]).where(_of(call, attempt), call.c.step <= step)
        rows = await conn.execute(query.order_by(call.c.step, call.c.parse_attempt))
        return [CallRecord.of(row) for row in rows.mappings()]

    @writes
    async def commit_turn(
        self,
        conn: AsyncConnection,
        attempt: AttemptRef,
        run_id: str,
        *,
        step: int,
        observation: Observation,
        actions: list[dict[str, Any]],
        started_at: float,
        pressure: dict[str, float] | None = None,
        answer_s: float | None = None,
    ) -> StoredTurn:
        """Commit the actions of a step and the observation after them; the first committed turn counts.

        `started_at`: Unix time of the worker, seconds. `pressure`: of the host, in percent by resource, after the
        observation. `answer_s`: seconds in which the desktop answered it.
        """
        await fence(conn, attempt, run_id)
        refs = {name: getattr(observation, name) for name in _ARTIFACTS_OF_TURN}
        await insert_artifacts(conn, refs.values())
        statuses = [action.get("status") for action in actions]
        redacted = redact_text(actions)
        values = {
            **attempt.model_dump(),
            "step": step,
            **{f"{name}_sha256": _sha(ref) for name, ref in refs.items()},
            "actions": redacted,
            "in_doubt": statuses.count("in_doubt"),
            "raised": statuses.count("raised"),
            "began": started_at,
            "pressure": pressure,
            "answer_s": answer_s,
            "row_digest": "",
        }
        if await conn.scalar(_INSERT_TURN, values) is not None:
            return StoredTurn(step=step, observation=observation, actions=redacted)
        stored = await _turn(conn, attempt, step)
        if stored is None:
            raise LedgerError(f"turn {step} of {attempt.rollout_key} was not stored")
        return stored

    @reads
    async def turn(self, conn: AsyncConnection, attempt: AttemptRef, step: int) -> StoredTurn | None:
        """The committed turn of a step; None before it. Step 0 is the first observation."""
        return await _turn(conn, attempt, step)

    @reads
    async def latest_observation(self, conn: AsyncConnection, rollout_key: str) -> Observation | None:
        """The newest observation of a rollout, of its newest attempt that has one."""
        table = tables.turn
        query = (
            select(table)
            .where(table.c.rollout_key == rollout_key)
            .order_by(table.c.attempt_index.desc(), table.c.step.desc())
            .limit(1)
        )
        row = (await conn.execute(query)).mappings().first()
        return None if row is None else await _observation(conn, row)

    @writes
    async def commit_evaluation(
        self, conn: AsyncConnection, attempt: AttemptRef, run_id: str, evaluation: Evaluation
    ) -> StoredEvaluation:
        """Commit the evaluator's answer; the first committed one counts."""
        await fence(conn, attempt, run_id)
        await insert_artifacts(conn, [evaluation.log])
        values = evaluation.model_dump(exclude={"log"}) | {"log_sha256": _sha(evaluation.log), "row_digest": ""}
        await conn.execute(insert(tables.evaluation).values(attempt.model_dump() | values).on_conflict_do_nothing())
        stored = await _evaluation(conn, attempt)
        if stored is None:
            raise LedgerError(f"the evaluation of {attempt.rollout_key} was not stored")
        return stored

    @reads
    async def evaluation(self, conn: AsyncConnection, attempt: AttemptRef) -> StoredEvaluation | None:
        """The committed evaluation of an attempt; None before it."""
        return await _evaluation(conn, attempt)

    @writes
    async def record_phase(self, conn: AsyncConnection, attempt: AttemptRef, run_id: str, phase: Phase) -> None:
        """Record a run of OSWorld's code; the same try again changes nothing."""
        await fence(conn, attempt, run_id)
        await insert_artifacts(conn, [phase.log, phase.screenshot])
        values = phase.model_dump(exclude={"log", "screenshot"})
        values |= {"log_sha256": _sha(phase.log), "screenshot_sha256": _sha(phase.screenshot), "row_digest": ""}
        await conn.execute(insert(tables.phase).values(attempt.model_dump() | values).on_conflict_do_nothing())

    @writes
    async def commit_examination(
        self, conn: AsyncConnection, attempt: AttemptRef, run_id: str, examination: Examination
    ) -> Examination:
        """Commit what the provider saw of the desktop; the first committed one counts."""
        await fence(conn, attempt, run_id)
        values = attempt.model_dump() | examination.model_dump() | {"row_digest": ""}
        await conn.execute(insert(tables.examination).values(values).on_conflict_do_nothing())
        stored = await _examination(conn, attempt)
        if stored is None:
            raise LedgerError(f"the examination of {attempt.rollout_key} was not stored")
        return stored

    @reads
    async def examination(self, conn: AsyncConnection, attempt: AttemptRef) -> Examination | None:
        """The committed examination of an attempt; None before it."""
        return await _examination(conn, attempt)

    @writes
    async def finalize(self, conn: AsyncConnection, request: FinalizeRequest, run_id: str) -> Finalized:
        """End an attempt: outcome, decision, selection. Repeating the same request returns the same answer.

        An end that the evidence does not support is recorded as `rollout_error`, masked: refusing it would leave the
        attempt open. Raises Fenced if the attempt is another run's or was ended from outside, LedgerConflict if it
        ended otherwise.
        """
        attempt = request.attempt
        key = (attempt.rollout_key, attempt.attempt_index)
        row = await lock_rollout(conn, attempt.rollout_key)
        owner = await _row(conn, tables.attempt, attempt)
        name = f"attempt {attempt.attempt_index} of {attempt.rollout_key}"
        if owner is None or owner["run_id"] != run_id:
            raise Fenced(f"{name} is not run {run_id}'s")
        reported = _reported_outcome(request, await _row(conn, tables.evaluation, attempt))
        batch = await read_batch(conn, row["batch_id"])
        contract = read_contract(row["batch_id"], batch["contract"])
        checked = await check_evidence(conn, key, reported, contract.limits.max_steps)
        if recorded := await _row(conn, tables.outcome, attempt):
            _check_same(name, recorded, reported, checked)
            return _finalized(recorded)
        outcome = await decide_next(conn, row, batch, attempt.attempt_index, checked)
        await record_outcome(conn, row, batch, attempt.attempt_index, outcome)
        recorded = await _row(conn, tables.outcome, attempt)
        assert recorded is not None
        return _finalized(recorded)


def _of(table: Table, attempt: AttemptRef) -> Any:
    return (table.c.rollout_key == attempt.rollout_key) & (table.c.attempt_index == attempt.attempt_index)


async def _row(conn: AsyncConnection, table: Table, attempt: AttemptRef) -> RowMapping | None:
    return (await conn.execute(select(table).where(_of(table, attempt)))).mappings().first()


# Claim ---------------------------------------------------------------------------------------------------------------


async def _attempts_of(conn: AsyncConnection, rollout_key: str) -> list[_Claimed]:
    attempt, outcome = tables.attempt, tables.outcome
    ended = (attempt.c.rollout_key == outcome.c.rollout_key) & (attempt.c.attempt_index == outcome.c.attempt_index)
    query = (
        select(*attempt.c["attempt_index", "run_id", "claim"], outcome.c.closed_by)
        .join_from(attempt, outcome, ended, isouter=True)
        .where(attempt.c.rollout_key == rollout_key)
        .order_by(attempt.c.attempt_index)
    )
    return [_Claimed(**row) for row in (await conn.execute(query)).mappings()]


def _check_overtaken(rollout_key: str, attempts: list[_Claimed], run_id: str, n: int) -> None:
    own = [attempt for attempt in attempts if attempt.run_id == run_id]
    if not own:
        return
    if own[-1].claim >= n:
        raise Fenced(f"{rollout_key}: run {run_id} made claim {own[-1].claim} already, claim {n} comes too late")
    if own[-1] is not attempts[-1]:
        raise Fenced(f"{rollout_key}: run {attempts[-1].run_id} has taken over from run {run_id}")
    if own[-1].closed_by not in (None, "episode"):
        raise Fenced(f"{rollout_key}: the attempt of run {run_id} was closed from outside ({own[-1].closed_by})")


async def _update_rollout(conn: AsyncConnection, rollout_key: str, **values: object) -> None:
    row = tables.rollout
    await conn.execute(row.update().where(row.c.rollout_key == rollout_key).values(**values))


async def _claimed(conn: AsyncConnection, row: RowMapping, batch: RowMapping, contract: Contract, index: int) -> Claim:
    attempt, task = tables.attempt, tables.task
    query = select(*attempt.c["execution_id", "trajectory_rollout_id"]).where(
        attempt.c.rollout_key == row["rollout_key"], attempt.c.attempt_index == index
    )
    ids: Mapping[Any, Any] = (await conn.execute(query)).mappings().one()
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


# Evidence ------------------------------------------------------------------------------------------------------------


async def _turn(conn: AsyncConnection, attempt: AttemptRef, step: int) -> StoredTurn | None:
    table = tables.turn
    row = (await conn.execute(select(table).where(_of(table, attempt), table.c.step == step))).mappings().first()
    if row is None:
        return None
    return StoredTurn(step=step, observation=await _observation(conn, row), actions=row["actions"])


async def _observation(conn: AsyncConnection, row: RowMapping) -> Observation:
    refs = await _refs(conn, [row[f"{name}_sha256"] for name in _ARTIFACTS_OF_TURN])
    return Observation(**{name: refs.get(row[f"{name}_sha256"]) for name in _ARTIFACTS_OF_TURN})


async def _evaluation(conn: AsyncConnection, attempt: AttemptRef) -> StoredEvaluation | None:
    row = await _row(conn, tables.evaluation, attempt)
    if row is None:
        return None
    refs = await _refs(conn, [row["log_sha256"]])
    return Evaluation(log=refs.get(row["log_sha256"]), **{name: row[name] for name in _EVALUATION})


async def _examination(conn: AsyncConnection, attempt: AttemptRef) -> Examination | None:
    row = await _row(conn, tables.examination, attempt)
    return None if row is None else Examination(**{name: row[name] for name in Examination.model_fields})


async def _refs(conn: AsyncConnection, digests: list[str | None]) -> dict[str | None, ArtifactRef]:
    present = [digest for digest in digests if digest is not None]
    if not present:
        return {}
    artifact = tables.artifact
    query = select(*artifact.c["sha256", "size_bytes", "media_type"]).where(artifact.c.sha256.in_(present))
    return {row["sha256"]: ArtifactRef(**row) for row in (await conn.execute(query)).mappings()}


def _sha(ref: ArtifactRef | None) -> str | None:
    return None if ref is None else ref.sha256


# Finalize ------------------------------------------------------------------------------------------------------------


def _reported_outcome(request: FinalizeRequest, evaluation: RowMapping | None) -> PendingOutcome:
    # The committed evaluation decides if the attempt was evaluated, not the request: its answer may have been lost.
    completed = evaluation is not None and evaluation["completed"]
    if request.facts.infrastructure_failure_reason is Infra.DESKTOP_BROKEN:
        completed = False  # a broken guest supplied the score
    guest_failed = request.guest_failed or (evaluation is not None and evaluation["guest_failed"])
    return PendingOutcome(
        facts=request.facts.model_copy(update={"evaluation_completed": completed}),
        closed_by="episode",
        score=evaluation["score"] if completed and evaluation is not None else None,
        steps=request.steps,
        guest_failed=guest_failed and not completed,
        refused=request.refused,
        detail=redact_text(request.detail)[:2000],
    )


def _check_same(name: str, recorded: RowMapping, reported: PendingOutcome, checked: PendingOutcome) -> None:
    if recorded["closed_by"] != "episode":
        raise Fenced(f"{name} was ended from outside ({recorded['termination_reason']})")
    # Versions before revision 0007 recorded a masked end without its score.
    facts = reported.facts.model_copy(update={"evaluation_completed": False})
    without_score = replace(reported, facts=facts, score=None)
    differences = [_differences(recorded, outcome) for outcome in (reported, checked, without_score)]
    if all(differences):
        raise LedgerConflict(f"{name} ended already, with other facts ({'; '.join(differences[0])})")


def _differences(recorded: RowMapping, outcome: PendingOutcome) -> list[str]:
    values = outcome.facts.model_dump() | {
        "guest_failed": outcome.guest_failed,
        "steps": outcome.steps,
        "detail": outcome.detail,
        "score": outcome.score,
    }
    return [
        f"{field}: {recorded[field]!r} -> {values[field]!r}" for field in _COMPARED if recorded[field] != values[field]
    ]


def _finalized(recorded: RowMapping) -> Finalized:
    return Finalized(
        termination_reason=recorded["termination_reason"],
        admitted=recorded["runtime_eligible"],
        score=recorded["score"],
        reward=recorded["reward"],
        another_attempt=recorded["next_state"] == "running",
        selected=recorded["selected"],
    )
