"""How an attempt ends: outcome, runtime admission, selection and the rollout's next state, in one transaction."""

from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import RowMapping, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from models.admission import (
    POLICIES,
    RECONCILED_POLICY,
    RUNTIME_POLICY,
    TRAINING_POLICY,
    AdmissionDecision,
    AdmissionFacts,
    decide_runtime,
)
from models.contract import RecordedContract
from models.outcome import Infra, OutcomeFacts, classify, earns_new_attempt, reward_of
from rollbook.ledger import tables
from rollbook.ledger.sanitize import redact_text

ClosedBy = Literal["episode", "claim", "cancel", "reconcile"]
State = Literal["final", "running", "waiting"]

_SO_FAR = text("""
    SELECT count(*) FILTER (WHERE reason IS DISTINCT FROM 'superseded') AS attempts,
           count(*) FILTER (WHERE reason = :reason) AS same
    FROM (SELECT outcome.infrastructure_failure_reason AS reason
          FROM outcome
          WHERE rollout_key = :rollout_key AND attempt_index < :attempt_index AND attempt_index > coalesce(
              (SELECT max(after_attempt) FROM rerun_request WHERE rollout_key = :rollout_key), 0)) AS earlier
""")

_ADMITTED = text("""
    SELECT admitted FROM admission
    WHERE rollout_key = :rollout_key AND attempt_index = :attempt_index AND scope = 'runtime'
    ORDER BY decision_index DESC LIMIT 1
""")


@dataclass(frozen=True, slots=True)
class End:
    """The end of an attempt as it will be recorded."""

    facts: OutcomeFacts
    closed_by: ClosedBy
    score: float | None = None
    steps: int = 0
    guest_failed: bool = False
    detail: str = ""
    next_state: State = "final"
    selected: bool = False

    @property
    def policy_id(self) -> str:
        """Policy of the runtime decision."""
        return RUNTIME_POLICY if self.closed_by in ("episode", "claim") else RECONCILED_POLICY


async def closed(
    conn: AsyncConnection, rollout_key: str, attempt_index: int, reason: Infra, closed_by: ClosedBy, detail: str
) -> End:
    """An end from outside: nothing of the attempt was proven but what its evaluation says.

    It stays masked, for the runner's facts died with its run; the score stays as reported (upstream contract §1.7.7),
    so that an attempt whose score is known is never tried again as if it were not.
    """
    evaluation = tables.evaluation
    score = await conn.scalar(
        select(evaluation.c.score).where(
            evaluation.c.rollout_key == rollout_key, evaluation.c.attempt_index == attempt_index
        )
    )
    facts = OutcomeFacts(evaluation_completed=score is not None, infrastructure_failure_reason=reason)
    return End(facts=facts, closed_by=closed_by, score=score, detail=redact_text(detail)[:2000])


async def decide(conn: AsyncConnection, row: RowMapping, batch: RowMapping, attempt_index: int, end: End) -> End:
    """Fill in what follows from the facts and the attempts so far: next state and selection (DESIGN §3)."""
    another = await _another(conn, row["rollout_key"], attempt_index, end, batch["max_attempts"])
    workflow_lives = end.closed_by == "episode" and not batch["stopping"]
    state: State = "running" if workflow_lives else "waiting"
    return replace(
        end,
        next_state=state if another and not batch["cancelling"] else "final",
        selected=await selects(conn, row, end.facts),
    )


async def _another(conn: AsyncConnection, rollout_key: str, attempt_index: int, end: End, budget: int) -> bool:
    reason = end.facts.infrastructure_failure_reason
    values = {"rollout_key": rollout_key, "attempt_index": attempt_index, "reason": reason}
    so_far = (await conn.execute(_SO_FAR, values)).mappings().one()
    return earns_new_attempt(
        reason,
        guest_failed=end.guest_failed,
        same_before=so_far["same"],
        attempts=so_far["attempts"] + 1,
        budget=budget,
    )


async def selects(conn: AsyncConnection, row: RowMapping, facts: OutcomeFacts) -> bool:
    """The newest end is selected, but never a masked one over an admitted one."""
    if row["selected_attempt"] is None or classify(facts).runtime_eligible:
        return True
    values = {"rollout_key": row["rollout_key"], "attempt_index": row["selected_attempt"]}
    return not await conn.scalar(_ADMITTED, values)


async def record_end(conn: AsyncConnection, row: RowMapping, batch: RowMapping, attempt_index: int, end: End) -> None:
    """Insert outcome and runtime decision; the rollout row itself is updated by the caller."""
    key = {"rollout_key": row["rollout_key"], "attempt_index": attempt_index}
    classification = classify(end.facts)
    mode = RecordedContract.read(batch["contract"]).reward_mode
    await conn.execute(
        tables.outcome.insert().values(
            **key,
            **end.facts.model_dump(exclude={"horizon_reached"}),
            horizon_reached=classification.horizon_reached,
            guest_failed=end.guest_failed,
            steps=end.steps,
            detail=end.detail,
            termination_reason=classification.termination_reason,
            runtime_eligible=classification.runtime_eligible,
            runtime_admission_reason=classification.runtime_admission_reason,
            runtime_admission_policy_id=end.policy_id,
            score=end.score,
            reward=reward_of(end.score, mode),
            reward_mode=mode,
            closed_by=end.closed_by,
            selected=end.selected,
            next_state=end.next_state,
            turns=_count(tables.turn, key),
            model_calls=_count(tables.model_call, key),
            evaluations=_count(tables.evaluation, key),
            row_digest="",
        )
    )
    decision = decide_runtime(classification)
    await _decision(conn, key, decision.model_copy(update={"policy_id": end.policy_id}), end.closed_by)
    if row["identity_source"] == "caller":  # who has no identity of a trainer needs no decision: never trained on
        facts = AdmissionFacts(identity_source="caller", runtime_admitted=decision.admitted)
        await _decision(conn, key, POLICIES[TRAINING_POLICY].decide(facts), end.closed_by)


async def _decision(conn: AsyncConnection, key: dict[str, object], decision: AdmissionDecision, by: ClosedBy) -> None:
    values = {**key, **decision.model_dump(), "decision_index": 1, "decided_by": by, "row_digest": ""}
    await conn.execute(tables.admission.insert().values(values))


def _count(table: object, key: dict[str, object]) -> object:
    columns = table.c  # type: ignore[attr-defined]
    return (
        select(func.count())
        .where(columns.rollout_key == key["rollout_key"], columns.attempt_index == key["attempt_index"])
        .scalar_subquery()
    )


async def read_batch(conn: AsyncConnection, batch_id: str) -> RowMapping:
    """The batch row as it is now; read after the rollout row is locked."""
    return (await conn.execute(select(tables.batch).where(tables.batch.c.batch_id == batch_id))).mappings().one()
