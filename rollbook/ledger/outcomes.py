"""End of an attempt: outcome, runtime admission, selection and the rollout's next state, in one transaction."""

from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import RowMapping, Table, func, select
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
from models.outcome import Infra, OnDesktopBroken, OutcomeFacts, classify, earns_new_attempt, reward_of
from rollbook.ledger import tables
from rollbook.ledger.sanitize import redact_text
from rollbook.ledger.sql import statements

ClosedBy = Literal["episode", "claim", "cancel", "reconcile"]
State = Literal["final", "running", "waiting"]

_SQL = statements("outcomes")


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """The outcome of an attempt before it is recorded."""

    facts: OutcomeFacts
    closed_by: ClosedBy
    score: float | None = None
    steps: int = 0
    guest_failed: bool = False
    refused: bool = False
    detail: str = ""
    next_state: State = "final"
    selected: bool = False

    @property
    def policy_id(self) -> str:
        """Policy of the runtime decision."""
        return RUNTIME_POLICY if self.closed_by in ("episode", "claim") else RECONCILED_POLICY


async def closed_from_outside(
    conn: AsyncConnection, rollout_key: str, attempt_index: int, reason: Infra, closed_by: ClosedBy, detail: str
) -> PendingOutcome:
    """The outcome of an attempt that its episode did not end: masked, because the runner's facts are lost."""
    evaluation = tables.evaluation
    score = await conn.scalar(
        select(evaluation.c.score).where(
            evaluation.c.rollout_key == rollout_key, evaluation.c.attempt_index == attempt_index
        )
    )
    # The score stays as reported, so that an attempt whose score is known is not tried again as if it were not.
    facts = OutcomeFacts(evaluation_completed=score is not None, infrastructure_failure_reason=reason)
    return PendingOutcome(facts=facts, closed_by=closed_by, score=score, detail=redact_text(detail)[:2000])


async def decide_next(
    conn: AsyncConnection, row: RowMapping, batch: RowMapping, attempt_index: int, outcome: PendingOutcome
) -> PendingOutcome:
    """Fill in what follows from the facts and the attempts so far: next state and selection."""
    contract = RecordedContract.read(batch["contract"])
    another = await _earns_another(
        conn, row["rollout_key"], attempt_index, outcome, batch["max_attempts"], contract.on_desktop_broken
    )
    # without a model server the pump decides when to begin again: see `Control.endpoint_trouble`
    model_away = outcome.facts.infrastructure_failure_reason is Infra.MODEL_CALL_FAILED
    workflow_lives = outcome.closed_by == "episode" and not batch["stopping"] and not model_away
    state: State = "running" if workflow_lives else "waiting"
    return replace(
        outcome,
        next_state=state if another and not batch["cancelling"] else "final",
        selected=await _becomes_selected(conn, row, outcome.facts),
    )


async def _earns_another(
    conn: AsyncConnection,
    rollout_key: str,
    attempt_index: int,
    outcome: PendingOutcome,
    budget: int,
    on_desktop_broken: OnDesktopBroken,
) -> bool:
    reason = outcome.facts.infrastructure_failure_reason
    values = {"rollout_key": rollout_key, "attempt_index": attempt_index, "reason": reason}
    earlier = (await conn.execute(_SQL["earlier_attempts"], values)).mappings().one()
    return earns_new_attempt(
        reason,
        guest_failed=outcome.guest_failed,
        same_before=earlier["same"],
        attempts=earlier["attempts"] + 1,
        budget=budget,
        on_desktop_broken=on_desktop_broken,
        refused=outcome.refused,
    )


async def _becomes_selected(conn: AsyncConnection, row: RowMapping, facts: OutcomeFacts) -> bool:
    # The newest outcome is selected, but never a masked one over an admitted one.
    if row["selected_attempt"] is None or classify(facts).runtime_eligible:
        return True
    values = {"rollout_key": row["rollout_key"], "attempt_index": row["selected_attempt"]}
    return not await conn.scalar(_SQL["is_admitted"], values)


async def record_outcome(
    conn: AsyncConnection, row: RowMapping, batch: RowMapping, attempt_index: int, outcome: PendingOutcome
) -> None:
    """Insert outcome and decisions and update the rollout row, which the caller has locked.

    A claim that supersedes an open attempt sets the state of the rollout itself.
    """
    key = {"rollout_key": row["rollout_key"], "attempt_index": attempt_index}
    classification = classify(outcome.facts)
    mode = RecordedContract.read(batch["contract"]).reward_mode
    await conn.execute(
        tables.outcome.insert().values(
            **key,
            **outcome.facts.model_dump(exclude={"horizon_reached"}),
            horizon_reached=classification.horizon_reached,
            guest_failed=outcome.guest_failed,
            steps=outcome.steps,
            detail=outcome.detail,
            termination_reason=classification.termination_reason,
            runtime_eligible=classification.runtime_eligible,
            runtime_admission_reason=classification.runtime_admission_reason,
            runtime_admission_policy_id=outcome.policy_id,
            score=outcome.score,
            reward=reward_of(outcome.score, mode),
            reward_mode=mode,
            closed_by=outcome.closed_by,
            selected=outcome.selected,
            next_state=outcome.next_state,
            turns=_count(tables.turn, key),
            model_calls=_count(tables.model_call, key),
            evaluations=_count(tables.evaluation, key),
            row_digest="",
        )
    )
    decision = decide_runtime(classification)
    await _insert_decision(conn, key, decision.model_copy(update={"policy_id": outcome.policy_id}), outcome.closed_by)
    if row["identity_source"] == "caller":  # a derived identity is never trained on and needs no decision
        facts = AdmissionFacts(identity_source="caller", runtime_admitted=decision.admitted)
        await _insert_decision(conn, key, POLICIES[TRAINING_POLICY].decide(facts), outcome.closed_by)
    if outcome.closed_by != "claim":
        values = {"state": outcome.next_state} | ({"selected_attempt": attempt_index} if outcome.selected else {})
        rollout = tables.rollout
        await conn.execute(rollout.update().where(rollout.c.rollout_key == row["rollout_key"]).values(values))


async def _insert_decision(
    conn: AsyncConnection, key: dict[str, object], decision: AdmissionDecision, closed_by: ClosedBy
) -> None:
    values = {**key, **decision.model_dump(), "decision_index": 1, "decided_by": closed_by, "row_digest": ""}
    await conn.execute(tables.admission.insert().values(values))


def _count(table: Table, key: dict[str, object]) -> object:
    return (
        select(func.count())
        .where(table.c.rollout_key == key["rollout_key"], table.c.attempt_index == key["attempt_index"])
        .scalar_subquery()
    )


# Evidence check ------------------------------------------------------------------------------------------------------


async def check_evidence(
    conn: AsyncConnection, key: tuple[str, int], outcome: PendingOutcome, max_steps: int
) -> PendingOutcome:
    """Mask an outcome that the committed evidence does not support: `rollout_error`, with the reason as detail.

    An activity that was completed by hand leaves no row behind; its episode ends all the same, and does not count.
    """
    values = {"rollout_key": key[0], "attempt_index": key[1]}
    evidence = (await conn.execute(_SQL["evidence"], values)).mappings().one()
    facts, steps = outcome.facts, outcome.steps
    problem = _problem_of_end(facts, steps, evidence, max_steps) or _problem_of_steps(steps, evidence)
    if problem:
        facts = OutcomeFacts(
            evaluation_completed=facts.evaluation_completed,
            infrastructure_failure_reason=facts.infrastructure_failure_reason,
        )
        steps = min(max(steps, evidence["decided"] - 1, evidence["newest"]), evidence["decided"])
    elif classify(facts).runtime_eligible:
        problem = _problem_of_turns(steps, evidence)
    if not problem:
        return outcome
    reason = facts.infrastructure_failure_reason or Infra.ROLLOUT_ERROR
    detail = f"the evidence does not support the outcome: {problem}" + (f"; {outcome.detail}" if outcome.detail else "")
    masked = facts.model_copy(update={"infrastructure_failure_reason": reason})
    return replace(outcome, facts=masked, steps=steps, detail=detail[:2000])


def _problem_of_end(facts: OutcomeFacts, steps: int, evidence: RowMapping, max_steps: int) -> str:
    ended = facts.terminal_action or facts.policy_stop_reason or facts.environment_done or facts.horizon_reached
    decided = (evidence["decided"], evidence["terminal_action"], evidence["policy_stop_reason"])
    if ended and decided != (steps, facts.terminal_action, facts.policy_stop_reason):
        return f"the last model call decided step {decided[0]}: {decided[1] or decided[2] or 'go on'}"
    if facts.horizon_reached and steps != max_steps:
        return f"{steps} steps are not the limit of {max_steps}"
    return ""


def _problem_of_steps(steps: int, evidence: RowMapping) -> str:
    # One step more may be decided: its answer was committed and never reached the run.
    if not steps <= evidence["decided"] <= steps + 1:
        return f"{steps} steps were reported, the last model call decided step {evidence['decided']}"
    return f"step {evidence['newest']} was observed after {steps} steps" if evidence["newest"] > steps else ""


def _problem_of_turns(steps: int, evidence: RowMapping) -> str:
    # The first observation and one per step; an end without actions is not observed.
    due = steps + 1 - evidence["unseen"]
    if evidence["turns"] == due and evidence["newest"] <= steps - evidence["unseen"]:
        return ""
    return f"{evidence['turns']} of {due} observations are there"
