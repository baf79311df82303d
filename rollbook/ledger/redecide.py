"""Deciding a whole batch anew under a named policy: decisions are appended, facts, score and reward never change."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import RowMapping, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BOOLEAN, INTEGER, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from models.admission import LEGACY_POLICY, POLICIES, RECONCILED_POLICY, AdmissionDecision, AdmissionFacts, Scope
from models.identity import canonical_json
from rollbook.errors import InvalidInput
from rollbook.ledger.sanitize import redact_text

_LOCK = text("""
    SELECT rollout_key, plan_order FROM rollout
    WHERE batch_id = :batch_id AND plan_order > :after AND selected_attempt IS NOT NULL
    ORDER BY plan_order LIMIT :chunk
    FOR NO KEY UPDATE
""")

_FACTS = text("""
    SELECT rollout.rollout_key, selected_attempt AS attempt_index, identity_source, closed_by, runtime_eligible,
           runtime_admission_reason, coalesce(counted.admitted, false) AS runtime_admitted,
           now.decision_index, now.admitted, now.reason, now.policy_id,
           (SELECT coalesce(sum(in_doubt), 0) FROM turn WHERE turn.rollout_key = rollout.rollout_key
                AND turn.attempt_index = selected_attempt) AS in_doubt,
           calls.replies, calls.replies_without_tokens
    FROM rollout
    JOIN outcome ON outcome.rollout_key = rollout.rollout_key AND outcome.attempt_index = selected_attempt
    LEFT JOIN current_admission AS counted ON counted.rollout_key = rollout.rollout_key
        AND counted.attempt_index = selected_attempt AND counted.scope = 'runtime'
    LEFT JOIN current_admission AS now ON now.rollout_key = rollout.rollout_key
        AND now.attempt_index = selected_attempt AND now.scope = :scope
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE completed) AS replies,
               count(*) FILTER (WHERE completed AND (tokens_sha256 IS NULL
                   OR telemetry -> 'token_problems' IS DISTINCT FROM '[]'))
                   AS replies_without_tokens
        FROM model_call WHERE model_call.rollout_key = rollout.rollout_key AND attempt_index = selected_attempt
    ) AS calls
    WHERE rollout.rollout_key = ANY(:keys) ORDER BY plan_order
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)))

_APPEND = text("""
    INSERT INTO admission (rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by,
                           evidence, row_digest)
    SELECT rollout_key, attempt_index, :scope, decision_index, admitted, :policy_id, reason, :decided_by,
           evidence::jsonb, ''
    FROM unnest(:keys, :attempts, :indexes, :admitted, :reasons, :evidence)
        AS new (rollout_key, attempt_index, decision_index, admitted, reason, evidence)
""").bindparams(
    *(bindparam(name, type_=ARRAY(TEXT)) for name in ("keys", "reasons", "evidence")),
    *(bindparam(name, type_=ARRAY(INTEGER)) for name in ("attempts", "indexes")),
    bindparam("admitted", type_=ARRAY(BOOLEAN)),
)

_SHOWN = 20


@dataclass(slots=True)
class Redecided:
    """What deciding a batch anew came to, over the selected attempts."""

    policy_id: str
    scope: Scope
    admitted: int = 0
    masked: int = 0
    unchanged: int = 0
    """Decided by the same policy, for the same reason, before: nothing was appended."""
    kept_by_hand: int = 0
    """A person's decision stays in force."""
    kept_imported: int = 0
    """Imported without the facts that a runtime policy needs: its decision stays in force."""
    flipped: list[str] = field(default_factory=list)
    """Rollouts that were admitted and no longer are, or the other way round; the first twenty, with the reason."""
    flips: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """Who decides, by which policy, and why."""

    policy_id: str
    because: str
    decided_by: str
    override_manual: bool = False


def start(rule: Rule) -> Redecided:
    """The empty result; raises InvalidInput for an unknown policy or a missing reason."""
    if rule.policy_id not in POLICIES:
        known = "; ".join(f"{policy.policy_id} ({policy.scope}: {policy.says})" for policy in POLICIES.values())
        raise InvalidInput(f"policy_id: no policy {rule.policy_id!r}; there is {known}")
    if not rule.because.strip() or not rule.decided_by.strip():
        raise InvalidInput("reason: say why and who decides; a decision is on record for good")
    return Redecided(rule.policy_id, POLICIES[rule.policy_id].scope)


async def redecide_some(
    conn: AsyncConnection, batch_id: str, rule: Rule, done: Redecided, after: int, *, dry_run: bool, chunk: int = 500
) -> int | None:
    """Decide up to `chunk` rollouts after plan order `after`; the last one's plan order, None when there were none."""
    locked = (await conn.execute(_LOCK, {"batch_id": batch_id, "after": after, "chunk": chunk})).all()
    if not locked:
        return None
    values = {"keys": [row.rollout_key for row in locked], "scope": done.scope.value}
    found = (await conn.execute(_FACTS, values)).mappings().all()
    new = [(row, decision) for row in found if (decision := _decide(row, rule, done)) is not None]
    if new and not dry_run:
        await _append(conn, rule, done.scope, new)
    return int(locked[-1].plan_order)


def _decide(row: RowMapping, rule: Rule, done: Redecided) -> AdmissionDecision | None:
    """The decision to append, noted in `done`; None where the one in force stays."""
    if done.scope is Scope.RUNTIME and row["closed_by"] == "import":
        done.kept_imported += 1
        return None
    if not rule.override_manual and _by_hand(row["policy_id"]):
        done.kept_by_hand += 1
        return None
    decision = POLICIES[rule.policy_id].decide(AdmissionFacts.model_validate(dict(row)))
    if (row["policy_id"], row["admitted"], row["reason"]) == (rule.policy_id, decision.admitted, decision.reason):
        done.unchanged += 1
        return None
    done.admitted += decision.admitted
    done.masked += not decision.admitted
    if bool(row["admitted"]) != decision.admitted:
        done.flips += 1
        if len(done.flipped) < _SHOWN:
            done.flipped.append(f"{row['rollout_key']}: {decision.reason}")
    return decision


def _by_hand(policy_id: str | None) -> bool:
    return policy_id is not None and policy_id not in {*POLICIES, LEGACY_POLICY, RECONCILED_POLICY}


async def _append(
    conn: AsyncConnection, rule: Rule, scope: Scope, new: Sequence[tuple[RowMapping, AdmissionDecision]]
) -> None:
    because = redact_text(rule.because)
    values = {
        "scope": scope.value,
        "policy_id": rule.policy_id,
        "decided_by": redact_text(rule.decided_by),
        "keys": [row["rollout_key"] for row, _ in new],
        "attempts": [row["attempt_index"] for row, _ in new],
        "indexes": [(row["decision_index"] or 0) + 1 for row, _ in new],
        "admitted": [decision.admitted for _, decision in new],
        "reasons": [decision.reason for _, decision in new],
        "evidence": [canonical_json({"because": because, **_numbers(row)}) for row, _ in new],
    }
    await conn.execute(_APPEND, values)


def _numbers(row: RowMapping) -> dict[str, int]:
    return {name: int(row[name]) for name in ("in_doubt", "replies", "replies_without_tokens")}
