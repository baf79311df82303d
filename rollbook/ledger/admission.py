"""Admission after the end of an attempt: decisions by hand, a policy applied again, requests to run again.

Everything is appended; facts, score and reward never change, and no result is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from models.admission import LEGACY_POLICY, POLICIES, RECONCILED_POLICY, AdmissionDecision, AdmissionFacts, Scope
from models.episode import AttemptRef
from models.identity import canonical_json
from rollbook.errors import InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.fence import lock_rollout
from rollbook.ledger.sanitize import redact_text
from rollbook.ledger.sql import statements
from rollbook.ledger.store import Store, writes

Selector = Literal["masked", "failed", "under pressure", "all"]

IMPORTED = "imported"
"""Policy kind of a batch that was imported: it has no workflow and is never run again."""

_SQL = statements("admission")
_AUTOMATIC = frozenset({*POLICIES, LEGACY_POLICY, RECONCILED_POLICY})
"""Policies that decide by themselves; any other id is a decision by hand."""
_SHOWN = 20


@dataclass(slots=True)
class ReappliedPolicy:
    """Result of applying a policy again to the selected attempts of a batch."""

    policy_id: str
    scope: Scope
    admitted: int = 0
    masked: int = 0
    unchanged: int = 0
    """Decided by the same policy, for the same reason, before: nothing was appended."""
    kept_by_hand: int = 0
    """A decision by hand stays in force."""
    kept_imported: int = 0
    """Imported without the facts that a runtime policy needs: its decision stays in force."""
    flipped: list[str] = field(default_factory=list)
    """Rollouts that were admitted and no longer are, or the other way round; the first twenty, with the reason."""
    flips: int = 0


@dataclass(frozen=True, slots=True)
class PolicyToReapply:
    """A policy to apply again, the reason and the person."""

    policy_id: str
    because: str
    decided_by: str
    override_manual: bool = False


class Admissions(Store):
    """Admission decisions and rerun requests."""

    @writes
    async def decide_admission(
        self,
        conn: AsyncConnection,
        rollout_key: str,
        decision: AdmissionDecision,
        *,
        decided_by: str,
        attempt_index: int | None = None,
        evidence: dict[str, Any] | None = None,
    ) -> AttemptRef:
        """Append a decision by hand on an ended attempt (the selected one by default); raises InvalidInput."""
        if decision.policy_id in _AUTOMATIC:
            raise InvalidInput(
                f"policy_id: {decision.policy_id} is a rule and decides for itself (`rollbook redecide`); a decision "
                "by hand has another name, for instance rollbook-manual-v1"
            )
        _require_reason(decision.reason, decided_by)
        row = await lock_rollout(conn, rollout_key)
        index = attempt_index or row["selected_attempt"]
        if index is None:
            raise InvalidInput(f"rollout: no attempt of {rollout_key} has ended; there is nothing to decide")
        attempt = AttemptRef(rollout_key=rollout_key, attempt_index=index)
        await _check_admissible(conn, attempt, decision, row["identity_source"])
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

    async def reapply_policy(
        self, batch_id: str, rule: PolicyToReapply, *, dry_run: bool = False, chunk: int = 500
    ) -> ReappliedPolicy:
        """Apply a policy to the selected attempts of a batch, in transactions of `chunk` rollouts; it may be repeated.

        `dry_run`: count only. Raises InvalidInput for an unknown batch or policy, or without a reason.
        """
        if rule.policy_id not in POLICIES:
            policies = "; ".join(f"{one.policy_id} ({one.scope}: {one.description})" for one in POLICIES.values())
            raise InvalidInput(f"policy_id: no policy {rule.policy_id!r}; there is {policies}")
        _require_reason(rule.because, rule.decided_by)
        result = ReappliedPolicy(rule.policy_id, POLICIES[rule.policy_id].scope)
        after: int | None = -1
        while after is not None:
            after = await self._reapply_chunk(batch_id, rule, result, after, dry_run, chunk)
        return result

    @writes
    async def _reapply_chunk(
        self,
        conn: AsyncConnection,
        batch_id: str,
        rule: PolicyToReapply,
        result: ReappliedPolicy,
        after: int,
        dry_run: bool,
        chunk: int,
    ) -> int | None:
        """Decide `chunk` rollouts after plan order `after`; returns the last one's plan order, None at the end."""
        if await conn.scalar(select(tables.batch.c.batch_id).where(tables.batch.c.batch_id == batch_id)) is None:
            raise InvalidInput(f"batch_id: no batch {batch_id!r}")
        values = {"batch_id": batch_id, "after": after, "chunk": chunk}
        locked = (await conn.execute(_SQL["lock_selected"], values)).all()
        if not locked:
            return None
        values = {"keys": [row.rollout_key for row in locked], "scope": result.scope.value}
        rows = (await conn.execute(_SQL["facts"], values)).mappings().all()
        decisions = [(row, decision) for row in rows if (decision := _decide(row, rule, result)) is not None]
        if decisions and not dry_run:
            await conn.execute(_SQL["append_decisions"], _decision_columns(rule, result.scope, decisions))
        return int(locked[-1].plan_order)

    @writes
    async def request_rerun(
        self,
        conn: AsyncConnection,
        batch_id: str,
        which: Selector | Sequence[str],
        *,
        reason: str,
        requested_by: str,
        supersede: bool = False,
    ) -> list[str]:
        """Request that final rollouts run again; returns the keys that wait now.

        `which`: `masked` (not admitted), `failed` (masked by a failure outside the policy), `all`, or rollout keys.
        Admitted ones run again only with `supersede`, and then count as superseded; raises InvalidInput otherwise. An
        eligible rollout that a later decision masked may run again, and counts as superseded as well.
        """
        if not reason.strip() or not requested_by.strip():
            raise InvalidInput("reason: give a reason and who requests it; a rerun is recorded permanently")
        await _refuse_imported(conn, batch_id)
        rows = await _lock_for_rerun(conn, batch_id, which)
        if not isinstance(which, str):
            _check_final(batch_id, which, rows)
        admitted = [row["rollout_key"] for row in rows if row["admitted"]]
        if admitted and not supersede:
            raise InvalidInput(
                f"{_are_admitted(admitted)}; running admitted rollouts again needs --supersede, which is recorded: "
                "otherwise re-running selects the best of several attempts"
            )
        keys = [row["rollout_key"] for row in rows]
        if keys:
            values = {
                "batch_id": batch_id,
                "keys": keys,
                "superseded": [row["rollout_key"] for row in rows if row["admitted"] or row["was_eligible"]],
                "reason": reason,
                "requested_by": requested_by,
            }
            for name in ("insert_requests", "set_waiting", "reopen_batch"):
                await conn.execute(_SQL[name], values)
        return keys


def _require_reason(reason: str, decided_by: str) -> None:
    if not reason.strip() or not decided_by.strip():
        raise InvalidInput("reason: give a reason and who decides; a decision is recorded permanently")


async def _check_admissible(
    conn: AsyncConnection, attempt: AttemptRef, decision: AdmissionDecision, identity_source: str
) -> None:
    outcome, admission = tables.outcome, tables.admission
    query = select(*outcome.c["evaluation_completed", "termination_reason"]).where(
        outcome.c.rollout_key == attempt.rollout_key, outcome.c.attempt_index == attempt.attempt_index
    )
    row = (await conn.execute(query)).mappings().first()
    name = f"attempt {attempt.attempt_index} of {attempt.rollout_key}"
    if row is None:
        raise InvalidInput(f"attempt: {name} has not ended")
    if not decision.admitted:
        return
    if not row["evaluation_completed"]:
        raise InvalidInput(f"attempt: {name} was not evaluated ({row['termination_reason']}); it has no score")
    if decision.scope == "training":
        if identity_source != "caller":
            raise InvalidInput("scope: a derived identity is never trainable; the caller must give the identity")
        runtime = select(admission.c.admitted).where(
            admission.c.rollout_key == attempt.rollout_key,
            admission.c.attempt_index == attempt.attempt_index,
            admission.c.scope == "runtime",
        )
        if not await conn.scalar(runtime.order_by(admission.c.decision_index.desc()).limit(1)):
            raise InvalidInput(f"scope: {name} is masked; it cannot be trained on")


def _decide(row: RowMapping, rule: PolicyToReapply, result: ReappliedPolicy) -> AdmissionDecision | None:
    """The decision to append, counted in `result`; None where the one in force stays."""
    if result.scope is Scope.RUNTIME and row["closed_by"] == "import":
        result.kept_imported += 1
        return None
    if not rule.override_manual and row["policy_id"] is not None and row["policy_id"] not in _AUTOMATIC:
        result.kept_by_hand += 1
        return None
    decision = POLICIES[rule.policy_id].decide(AdmissionFacts.model_validate(dict(row)))
    if (row["policy_id"], row["admitted"], row["reason"]) == (rule.policy_id, decision.admitted, decision.reason):
        result.unchanged += 1
        return None
    result.admitted += decision.admitted
    result.masked += not decision.admitted
    if bool(row["admitted"]) != decision.admitted:
        result.flips += 1
        if len(result.flipped) < _SHOWN:
            result.flipped.append(f"{row['rollout_key']}: {decision.reason}")
    return decision


def _decision_columns(
    rule: PolicyToReapply, scope: Scope, decisions: Sequence[tuple[RowMapping, AdmissionDecision]]
) -> dict[str, Any]:
    because = redact_text(rule.because)
    numbers = ("in_doubt", "replies", "replies_without_tokens")
    return {
        "scope": scope.value,
        "policy_id": rule.policy_id,
        "decided_by": redact_text(rule.decided_by),
        "keys": [row["rollout_key"] for row, _ in decisions],
        "attempts": [row["attempt_index"] for row, _ in decisions],
        "indexes": [(row["decision_index"] or 0) + 1 for row, _ in decisions],
        "admitted": [decision.admitted for _, decision in decisions],
        "reasons": [decision.reason for _, decision in decisions],
        "evidence": [
            canonical_json({"because": because, **{name: int(row[name]) for name in numbers}}) for row, _ in decisions
        ],
    }


def _are_admitted(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return f"rollout: {keys[0]} is admitted"
    return f"rollout: {len(keys)} of them are admitted (for instance {keys[0]})"


async def _lock_for_rerun(
    conn: AsyncConnection, batch_id: str, which: Selector | Sequence[str]
) -> Sequence[RowMapping]:
    # Locked first and read afterwards, in a statement of its own: a decision that was made about a row while its lock
    # was waited for counts, so a row that was admitted in between is not taken for a masked one.
    selector = which if isinstance(which, str) else "named"
    values: dict[str, Any] = {"batch_id": batch_id, "which": selector, "keys": None}
    if isinstance(which, str):
        candidates = (await conn.execute(_SQL["rerun_candidates"], values)).mappings()
        values["keys"] = [row["rollout_key"] for row in candidates]
    else:
        values["keys"] = list(which)
    await conn.execute(_SQL["lock_named"], values)
    return (await conn.execute(_SQL["rerun_candidates"], values)).mappings().all()


def _check_final(batch_id: str, which: Sequence[str], rows: Sequence[RowMapping]) -> None:
    states = {row["rollout_key"]: row["state"] for row in rows}
    for key in which:
        if states.get(key) != "final":
            problem = f"is {states[key]}" if key in states else f"is not in batch {batch_id}"
            raise InvalidInput(f"rollout: {key} {problem}; only a final one can run again")


async def _refuse_imported(conn: AsyncConnection, batch_id: str) -> None:
    kind = select(tables.batch.c.contract["policy"]["kind"].as_string()).where(tables.batch.c.batch_id == batch_id)
    if await conn.scalar(kind) == IMPORTED:
        raise InvalidInput(f"batch {batch_id} was imported; it ran elsewhere and cannot be run again here")
