"""Admission decisions after the fact: appended, the newest one is in force; facts, score and reward never change."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from models.admission import LEGACY_POLICY, POLICIES, RECONCILED_POLICY, AdmissionDecision
from models.episode import AttemptRef
from rollbook.errors import InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.fence import lock_rollout


async def decide_admission(
    conn: AsyncConnection,
    rollout_key: str,
    decision: AdmissionDecision,
    *,
    decided_by: str,
    attempt_index: int | None = None,
    evidence: dict[str, Any] | None = None,
) -> AttemptRef:
    """Append a decision on an ended attempt (the selected one by default). Raises InvalidInput that says why not.

    It is a person's: in the name of a rule only that rule decides (`redecide`, and the end of an attempt).
    """
    if decision.policy_id in {*POLICIES, LEGACY_POLICY, RECONCILED_POLICY}:
        raise InvalidInput(
            f"policy_id: {decision.policy_id} is a rule and decides for itself (`rollbook redecide`); a decision by "
            "hand has another name, for instance rollbook-manual-v1"
        )
    if not decision.reason.strip() or not decided_by.strip():
        raise InvalidInput("reason: say why and who decides; a decision is on record for good")
    row = await lock_rollout(conn, rollout_key)
    index = attempt_index or row["selected_attempt"]
    if index is None:
        raise InvalidInput(f"rollout: no attempt of {rollout_key} has ended; there is nothing to decide")
    attempt = AttemptRef(rollout_key=rollout_key, attempt_index=index)
    await _require_admissible(conn, attempt, decision, row["identity_source"])
    table = tables.admission
    newest = select(func.coalesce(func.max(table.c.decision_index), 0)).where(
        table.c.rollout_key == rollout_key, table.c.attempt_index == index, table.c.scope == decision.scope
    )
    values = decision.model_dump() | {
        "rollout_key": rollout_key,
        "attempt_index": index,
        "decision_index": (await conn.scalar(newest) or 0) + 1,
        "decided_by": decided_by,
        "evidence": evidence,
        "row_digest": "",
    }
    await conn.execute(table.insert().values(values))
    return attempt


async def _require_admissible(
    conn: AsyncConnection, attempt: AttemptRef, decision: AdmissionDecision, identity_source: str
) -> None:
    end = tables.outcome
    query = select(*end.c["evaluation_completed", "termination_reason"]).where(
        end.c.rollout_key == attempt.rollout_key, end.c.attempt_index == attempt.attempt_index
    )
    found = (await conn.execute(query)).mappings().first()
    name = f"attempt {attempt.attempt_index} of {attempt.rollout_key}"
    if found is None:
        raise InvalidInput(f"attempt: {name} has not ended")
    if not decision.admitted:
        return
    if not found["evaluation_completed"]:
        raise InvalidInput(f"attempt: {name} was not evaluated ({found['termination_reason']}); it has no score")
    if decision.scope == "training":
        if identity_source != "caller":
            raise InvalidInput("scope: a derived identity is never trainable; the caller must give the identity")
        runtime = select(tables.admission.c.admitted).where(
            tables.admission.c.rollout_key == attempt.rollout_key,
            tables.admission.c.attempt_index == attempt.attempt_index,
            tables.admission.c.scope == "runtime",
        )
        if not await conn.scalar(runtime.order_by(tables.admission.c.decision_index.desc()).limit(1)):
            raise InvalidInput(f"scope: {name} is masked; it cannot be trained on")
