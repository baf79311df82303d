"""Running final rollouts again: an appended request, never a deleted result."""

from collections.abc import Sequence
from typing import Literal

from sqlalchemy import RowMapping, bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from rollbook.errors import InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.imports import KIND

Selector = Literal["masked", "failed", "all"]

_CONDITIONS = {
    "masked": "state = 'final' AND NOT coalesce(decision.admitted, false)",
    "failed": "state = 'final' AND NOT coalesce(decision.admitted, false)"
    " AND infrastructure_failure_reason IS NOT NULL AND infrastructure_failure_reason <> 'cancelled'",
    "all": "state = 'final'",
    "named": "true",
}

_FOUND = """
    SELECT rollout.rollout_key, state, coalesce(decision.admitted, false) AS admitted,
           coalesce(outcome.runtime_eligible, false) AS counted_once
    FROM rollout
    LEFT JOIN outcome ON outcome.rollout_key = rollout.rollout_key
        AND outcome.attempt_index = rollout.selected_attempt
    LEFT JOIN current_admission AS decision ON decision.rollout_key = rollout.rollout_key
        AND decision.attempt_index = rollout.selected_attempt AND decision.scope = 'runtime'
    WHERE batch_id = :batch_id AND {condition}
"""

_CANDIDATES = {
    which: text(f"SELECT rollout_key FROM ({_FOUND.format(condition=condition)}) AS found")
    for which, condition in _CONDITIONS.items()
    if which != "named"
}

_LOCK = text("""
    SELECT FROM rollout WHERE batch_id = :batch_id AND rollout_key = ANY(:keys)
    ORDER BY rollout_key FOR NO KEY UPDATE
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)))

_SELECTED = {
    which: text(
        _FOUND.format(condition=condition) + "AND rollout.rollout_key = ANY(:keys) ORDER BY rollout.rollout_key"
    ).bindparams(bindparam("keys", type_=ARRAY(TEXT)))
    for which, condition in _CONDITIONS.items()
}

_REQUEST = text("""
    INSERT INTO rerun_request (rollout_key, after_attempt, supersede, reason, requested_by, row_digest)
    SELECT rollout_key, current_attempt, rollout_key = ANY(:superseded), :reason, :requested_by, ''
    FROM rollout WHERE rollout_key = ANY(:keys) AND state = 'final'
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)), bindparam("superseded", type_=ARRAY(TEXT)))

_WAIT = text("UPDATE rollout SET state = 'waiting' WHERE rollout_key = ANY(:keys)").bindparams(
    bindparam("keys", type_=ARRAY(TEXT))
)

_REOPEN = text("UPDATE batch SET closed_at = NULL WHERE batch_id = :batch_id")


async def request_rerun(
    conn: AsyncConnection,
    batch_id: str,
    which: Selector | Sequence[str],
    *,
    reason: str,
    requested_by: str,
    supersede: bool = False,
) -> list[str]:
    """Ask for final rollouts to run again; the keys that now wait.

    `which`: `masked` (not admitted), `failed` (masked by a failure outside the policy), `all`, or rollout keys.
    Admitted ones run again only with `supersede`, and then count as superseded. Raises InvalidInput otherwise. What was
    eligible and has been masked by a later decision may run again, and counts as superseded as well.
    """
    if not reason.strip() or not requested_by.strip():
        raise InvalidInput("reason: say why and who asks; a rerun is on record for good")
    await _require_ours(conn, batch_id)
    rows = await _locked(conn, batch_id, which)
    if not isinstance(which, str):
        _require_final(batch_id, which, rows)
    admitted = [row["rollout_key"] for row in rows if row["admitted"]]
    if admitted and not supersede:
        raise InvalidInput(
            f"{_are_admitted(admitted)}; running what is admitted again needs --supersede, which is on record: "
            "otherwise it is best-of-n in disguise"
        )
    keys = [row["rollout_key"] for row in rows]
    if keys:
        said = {"reason": reason, "requested_by": requested_by}
        superseded = [row["rollout_key"] for row in rows if row["admitted"] or row["counted_once"]]
        await conn.execute(_REQUEST, {"keys": keys, "superseded": superseded} | said)
        await conn.execute(_WAIT, {"keys": keys})
        await conn.execute(_REOPEN, {"batch_id": batch_id})
    return keys


def _are_admitted(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return f"rollout: {keys[0]} is admitted"
    return f"rollout: {len(keys)} of them are admitted (for instance {keys[0]})"


async def _locked(conn: AsyncConnection, batch_id: str, which: Selector | Sequence[str]) -> Sequence[RowMapping]:
    """The rows asked for, locked first and looked at afterwards, in a statement of its own.

    What is decided about a row while its lock is waited for counts: a row that is admitted meanwhile is no masked one.
    """
    if isinstance(which, str):
        keys = list((await conn.execute(_CANDIDATES[which], {"batch_id": batch_id})).scalars())
    else:
        keys = list(which)
    values = {"batch_id": batch_id, "keys": keys}
    await conn.execute(_LOCK, values)
    selected = _SELECTED[which if isinstance(which, str) else "named"]
    return (await conn.execute(selected, values)).mappings().all()


def _require_final(batch_id: str, which: Sequence[str], rows: Sequence[RowMapping]) -> None:
    known = {row["rollout_key"]: row["state"] for row in rows}
    for key in which:
        if known.get(key) != "final":
            state = f"is {known[key]}" if key in known else f"is not in batch {batch_id}"
            raise InvalidInput(f"rollout: {key} {state}; only a final one can run again")


async def _require_ours(conn: AsyncConnection, batch_id: str) -> None:
    kind = select(tables.batch.c.contract["policy"]["kind"].as_string()).where(tables.batch.c.batch_id == batch_id)
    if await conn.scalar(kind) == KIND:
        raise InvalidInput(f"batch {batch_id} was imported; it ran elsewhere and cannot be run again here")
