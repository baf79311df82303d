"""What was recorded of ended attempts, whole: for evidence, exports and replays. Reads only."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from models.contract import Contract, PolicyContract
from rollbook.errors import InvalidInput
from rollbook.ledger.records import StoredCall

Row = dict[str, Any]

_SPEC = text("SELECT spec FROM registration WHERE batch_id = :batch_id ORDER BY launch_index DESC LIMIT 1")

_ROLLOUTS = text("""
    SELECT rollout_key, domain, task_id, sample, state, selected_attempt, plan_order,
           admitted, score
    FROM rollout_result WHERE batch_id = :batch_id ORDER BY plan_order
""")

_ROLLOUT = text("""
    SELECT rollout.*, batch.contract, batch.contract_digest, batch.deployment_id, task.document
    FROM rollout JOIN batch USING (batch_id) JOIN task USING (task_digest) WHERE rollout_key = :key
""")

_ATTEMPT = text("SELECT * FROM attempt WHERE rollout_key = :key AND attempt_index = :attempt")
_OUTCOME = text("SELECT * FROM outcome WHERE rollout_key = :key AND attempt_index = :attempt")
_CALLS = text(
    "SELECT * FROM model_call WHERE rollout_key = :key AND attempt_index = :attempt ORDER BY step, parse_attempt"
)
_TURNS = text("""
    SELECT turn.*, artifact.size_bytes AS screenshot_bytes
    FROM turn LEFT JOIN artifact ON artifact.sha256 = turn.screenshot_sha256
    WHERE rollout_key = :key AND attempt_index = :attempt ORDER BY step
""")
_DECISIONS = text("""
    SELECT scope, admitted, reason, policy_id, decided_by, decision_index FROM current_admission
    WHERE rollout_key = :key AND attempt_index = :attempt ORDER BY scope
""")


_MEMBERS = text("""
    SELECT rollout_key, group_planned, group_members, group_valid, group_baseline, group_advantage,
           training_admitted, training_reason, trainable
    FROM training_rows WHERE batch_id = :batch_id
""")

_BATCH = text("""
    SELECT batch_id, contract, contract_digest, deployment_id, purpose, created_at FROM batch WHERE batch_id = :batch_id
""")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One attempt as the ledger holds it."""

    rollout: Row
    """The planned row with the batch's contract and the task's document."""
    attempt: Row
    outcome: Row | None
    """None while it is open."""
    calls: list[Row]
    """Model calls, parser retries included, in their order."""
    turns: list[Row]
    decisions: dict[str, Row]
    """The decision in force per scope: runtime, training."""

    @property
    def key(self) -> str:
        """The rollout."""
        return str(self.rollout["rollout_key"])

    @property
    def attempt_index(self) -> int:
        """Which attempt of it."""
        return int(self.attempt["attempt_index"])

    @property
    def contract(self) -> Contract:
        """The contract of a batch that ran here; raises ValueError for an imported one."""
        return Contract.read(self.rollout["contract"])

    @property
    def policy(self) -> PolicyContract:
        """The policy of the batch's contract, also of an imported one."""
        return PolicyContract.read(self.rollout["contract"]["policy"])

    @property
    def stored_calls(self) -> list[StoredCall]:
        """The calls as policies see them."""
        return [StoredCall(**{name: row[name] for name in StoredCall.__slots__}) for row in self.calls]

    def decision(self, scope: str) -> Row:
        """The decision in force; a fresh record is not admitted."""
        return self.decisions.get(scope) or {"admitted": False, "reason": None, "policy_id": None, "decided_by": None}


async def launched_spec(conn: AsyncConnection, batch_id: str) -> Row:
    """The spec of the newest launch; raises InvalidInput for an unknown batch."""
    found = await conn.scalar(_SPEC, {"batch_id": batch_id})
    if found is None:
        raise InvalidInput(f"batch: the ledger has no batch {batch_id!r}; `rollbook status` lists them")
    return dict(found)


async def rollouts_of(conn: AsyncConnection, batch_id: str) -> list[Row]:
    """The planned rollouts of a batch, in plan order; raises InvalidInput for an unknown batch."""
    found = [dict(row) for row in (await conn.execute(_ROLLOUTS, {"batch_id": batch_id})).mappings()]
    if not found:
        raise InvalidInput(f"batch: the ledger has no batch {batch_id!r} with rollouts")
    return found


async def members_of(conn: AsyncConnection, batch_id: str) -> dict[str, Row]:
    """Group statistics of every final rollout, by its key; masked members have no vote in them."""
    rows = (await conn.execute(_MEMBERS, {"batch_id": batch_id})).mappings()
    return {row["rollout_key"]: dict(row) for row in rows}


async def batch_of(conn: AsyncConnection, batch_id: str) -> Row:
    """A batch with its contract; raises InvalidInput for an unknown one."""
    found = (await conn.execute(_BATCH, {"batch_id": batch_id})).mappings().first()
    if found is None:
        raise InvalidInput(f"batch: the ledger has no batch {batch_id!r}; `rollbook status` lists them")
    return dict(found)


async def planned_rollout(conn: AsyncConnection, rollout_key: str) -> Row:
    """A planned row with contract and task document, attempted or not; raises InvalidInput."""
    row = (await conn.execute(_ROLLOUT, {"key": rollout_key})).mappings().first()
    if row is None:
        raise InvalidInput(f"rollout: the ledger has no rollout {rollout_key!r}")
    return dict(row)


async def recorded(conn: AsyncConnection, rollout_key: str, attempt: int | None = None) -> Recorded:
    """An attempt of a rollout, the selected (else the newest) one by default; raises InvalidInput."""
    row = await planned_rollout(conn, rollout_key)
    wanted = attempt or row["selected_attempt"] or row["current_attempt"]
    values = {"key": rollout_key, "attempt": wanted}
    made = (await conn.execute(_ATTEMPT, values)).mappings().first()
    if made is None:
        raise InvalidInput(f"attempt: {rollout_key} has no attempt {wanted or 'yet'}")
    ended = (await conn.execute(_OUTCOME, values)).mappings().first()
    return Recorded(
        rollout=row,
        attempt=dict(made),
        outcome=None if ended is None else dict(ended),
        calls=[dict(call) for call in (await conn.execute(_CALLS, values)).mappings()],
        turns=[dict(turn) for turn in (await conn.execute(_TURNS, values)).mappings()],
        decisions={row["scope"]: dict(row) for row in (await conn.execute(_DECISIONS, values)).mappings()},
    )
