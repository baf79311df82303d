"""Ends from outside: rows closed because their batch was cancelled, or because their workflow is gone."""

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY, INTEGER, TEXT, UUID
from sqlalchemy.ext.asyncio import AsyncConnection

from models.admission import RECONCILED_POLICY, SAMPLE_MASKED, TRAINING_POLICY
from models.contract import RecordedContract
from models.outcome import Infra
from rollbook.ledger import tables
from rollbook.ledger.control import check_launch
from rollbook.ledger.ending import closed, decide, read_batch, record_end
from rollbook.ledger.fence import lock_rollout
from rollbook.ledger.identity import trajectory_rollout_id
from rollbook.ledger.sanitize import redact_text
from rollbook.ledger.tables.attempts import REWARD

_LIST_OPEN_ROWS = text("""
    SELECT rollout_key FROM rollout
    WHERE batch_id = :batch_id AND state <> 'final'
    ORDER BY rollout_key LIMIT 100000
""")

_LOCK_OPEN_ROWS = text("""
    SELECT rollout_key FROM rollout
    WHERE rollout_key = ANY(:keys) AND state <> 'final'
    ORDER BY rollout_key
    FOR NO KEY UPDATE
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)))

_OPEN_ROWS = text("""
    SELECT rollout.*, made.attempt_index IS NOT NULL AND ended.attempt_index IS NULL AS is_open,
           coalesce((SELECT admitted FROM admission AS decision
                     WHERE decision.rollout_key = rollout.rollout_key AND scope = 'runtime'
                       AND decision.attempt_index = rollout.selected_attempt
                     ORDER BY decision_index DESC LIMIT 1), false) AS keeps_selection
    FROM rollout
    LEFT JOIN attempt AS made ON made.rollout_key = rollout.rollout_key AND made.attempt_index = current_attempt
    LEFT JOIN outcome AS ended ON ended.rollout_key = rollout.rollout_key AND ended.attempt_index = current_attempt
    WHERE rollout.rollout_key = ANY(:keys) AND state <> 'final'
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)))

_NEVER_RAN = text("""
    INSERT INTO attempt (rollout_key, attempt_index, workflow_id, run_id, claim, execution_id, trajectory_rollout_id,
                         row_digest)
    SELECT rollout_key, attempt_index, rollout_key, 'closed-' || execution_id, 1, execution_id, trajectory, ''
    FROM unnest(:keys, :indexes, :executions, :trajectories)
        AS new (rollout_key, attempt_index, execution_id, trajectory)
""").bindparams(
    bindparam("keys", type_=ARRAY(TEXT)),
    bindparam("indexes", type_=ARRAY(INTEGER)),
    bindparam("executions", type_=ARRAY(UUID)),
    bindparam("trajectories", type_=ARRAY(TEXT)),
)

_END_ROWS = text(f"""
    INSERT INTO outcome (rollout_key, attempt_index, evaluation_completed, infrastructure_failure_reason,
                         environment_done, horizon_reached, guest_failed, steps, detail, termination_reason,
                         runtime_eligible, runtime_admission_reason, runtime_admission_policy_id, score, reward,
                         reward_mode, closed_by, selected, next_state, turns, model_calls, evaluations, row_digest)
    SELECT rollout_key, attempt_index, score IS NOT NULL, :reason, false, false, false, 0, :detail, :reason,
           false, :reason, :policy_id, score, {REWARD}, reward_mode, 'cancel', NOT keeps_selection, 'final',
           (SELECT count(*) FROM turn
            WHERE turn.rollout_key = new.rollout_key AND turn.attempt_index = new.attempt_index),
           (SELECT count(*) FROM model_call AS call
            WHERE call.rollout_key = new.rollout_key AND call.attempt_index = new.attempt_index),
           (evaluation.row_digest IS NOT NULL)::integer, ''
    FROM unnest(:keys, :indexes, :keeps) AS new (rollout_key, attempt_index, keeps_selection)
    LEFT JOIN evaluation USING (rollout_key, attempt_index)
    CROSS JOIN (SELECT CAST(:reward_mode AS text) AS reward_mode) AS contract
""").bindparams(
    bindparam("keys", type_=ARRAY(TEXT)),
    bindparam("indexes", type_=ARRAY(INTEGER)),
    bindparam("keeps"),
)

_DECIDE_ROWS = text("""
    INSERT INTO admission (rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by,
                           row_digest)
    SELECT rollout_key, attempt_index, 'runtime', 1, false, :policy_id, :reason, 'cancel', ''
    FROM unnest(:keys, :indexes) AS new (rollout_key, attempt_index)
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)), bindparam("indexes", type_=ARRAY(INTEGER)))

_DECIDE_TRAINING = text("""
    INSERT INTO admission (rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by,
                           row_digest)
    SELECT rollout_key, attempt_index, 'training', 1, false, :training_policy_id, :training_reason, 'cancel', ''
    FROM unnest(:keys, :indexes) AS new (rollout_key, attempt_index) JOIN rollout USING (rollout_key)
    WHERE identity_source = 'caller'
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)), bindparam("indexes", type_=ARRAY(INTEGER)))

_CLOSE_ROWS = text("""
    UPDATE rollout
    SET state = 'final', current_attempt = new.attempt_index,
        selected_attempt = CASE WHEN new.keeps_selection THEN selected_attempt ELSE new.attempt_index END
    FROM unnest(:keys, :indexes, :keeps) AS new (rollout_key, attempt_index, keeps_selection)
    WHERE rollout.rollout_key = new.rollout_key
""").bindparams(bindparam("keys", type_=ARRAY(TEXT)), bindparam("indexes", type_=ARRAY(INTEGER)), bindparam("keeps"))


async def open_rows(conn: AsyncConnection, batch_id: str) -> list[str]:
    """Keys of rows that are not final, 100,000 at most.

    Listed once for many transactions: looking for the next open row again and again reads all that were closed before.
    """
    return list((await conn.execute(_LIST_OPEN_ROWS, {"batch_id": batch_id})).scalars())


async def close_some(
    conn: AsyncConnection, batch_id: str, reason: str, candidates: Sequence[str], launch_id: str = ""
) -> int:
    """Close those of `candidates` that are not final as cancelled; how many were closed.

    A row that never ran, or stands between attempts, gets an attempt that says so: every final row has one.
    """
    keys = list((await conn.execute(_LOCK_OPEN_ROWS, {"keys": list(candidates)})).scalars())
    if not keys:
        return 0
    batch = await read_batch(conn, batch_id)
    check_launch(batch_id, batch["launch_id"], launch_id)
    rows = list((await conn.execute(_OPEN_ROWS, {"keys": keys})).mappings())
    never_ran = [row for row in rows if not row["is_open"]]
    contract = RecordedContract.read(batch["contract"])
    await _insert_attempts(conn, contract.policy.name, never_ran)
    indexes = [(row["current_attempt"] or 0) + (not row["is_open"]) for row in rows]
    values: dict[str, Any] = {
        "keys": [row["rollout_key"] for row in rows],
        "indexes": indexes,
        "keeps": [row["keeps_selection"] for row in rows],
    }
    said = {"reason": Infra.CANCELLED.value, "policy_id": RECONCILED_POLICY}
    detail = {"detail": redact_text(reason)[:2000], "reward_mode": contract.reward_mode}
    await conn.execute(_END_ROWS, values | said | detail)
    await conn.execute(_DECIDE_ROWS, {"keys": values["keys"], "indexes": indexes} | said)
    training = {"training_policy_id": TRAINING_POLICY, "training_reason": SAMPLE_MASKED}
    await conn.execute(_DECIDE_TRAINING, {"keys": values["keys"], "indexes": indexes} | training)
    await conn.execute(_CLOSE_ROWS, values)
    return len(rows)


async def _insert_attempts(conn: AsyncConnection, policy_name: str, rows: list[Any]) -> None:
    if not rows:
        return
    indexes = [(row["current_attempt"] or 0) + 1 for row in rows]
    values = {
        "keys": [row["rollout_key"] for row in rows],
        "indexes": indexes,
        "executions": [uuid.uuid4() for _ in rows],
        "trajectories": [
            trajectory_rollout_id(row, policy_name, index) for row, index in zip(rows, indexes, strict=True)
        ],
    }
    await conn.execute(_NEVER_RAN, values)


async def close_reconciled(conn: AsyncConnection, rollout_key: str, attempt_index: int, reason: str) -> str | None:
    """Fence an attempt whose workflow is gone: end it as `reconciled`, masked, with the score if it has one.

    Returns the state of the rollout after it (waiting while the budget lasts, else final), or None when the attempt
    is no longer the open one and nothing was done.
    """
    row = await lock_rollout(conn, rollout_key)
    made, ended = tables.attempt, tables.outcome
    is_open = select(made.c.attempt_index).where(
        made.c.rollout_key == rollout_key,
        made.c.attempt_index == attempt_index,
        ~select(ended).where(ended.c.rollout_key == rollout_key, ended.c.attempt_index == attempt_index).exists(),
    )
    if await conn.scalar(is_open) is None:
        return None
    batch = await read_batch(conn, row["batch_id"])
    end = await closed(conn, rollout_key, attempt_index, Infra.RECONCILED, "reconcile", reason)
    end = await decide(conn, row, batch, attempt_index, end)
    await record_end(conn, row, batch, attempt_index, end)
    values: dict[str, Any] = {"state": end.next_state} | ({"selected_attempt": attempt_index} if end.selected else {})
    await conn.execute(tables.rollout.update().where(tables.rollout.c.rollout_key == rollout_key).values(values))
    return end.next_state


async def requeue(conn: AsyncConnection, rollout_key: str) -> bool:
    """Back to waiting: a row that was queued or stands between attempts and whose workflow is gone.

    False when it has gone on meanwhile (an open attempt, final) and nothing was done.
    """
    row = await lock_rollout(conn, rollout_key)
    made, ended = tables.attempt, tables.outcome
    an_open = select(made.c.attempt_index).where(
        made.c.rollout_key == rollout_key,
        ~select(ended)
        .where(ended.c.rollout_key == rollout_key, ended.c.attempt_index == made.c.attempt_index)
        .exists(),
    )
    if row["state"] not in ("queued", "running") or await conn.scalar(an_open) is not None:
        return False
    await conn.execute(
        tables.rollout.update().where(tables.rollout.c.rollout_key == rollout_key).values(state="waiting")
    )
    return True
