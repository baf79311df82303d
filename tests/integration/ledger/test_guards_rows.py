"""Raw SQL against the tables: as the worker role, as the reader, and as the owner. The ledger stays true."""

import re
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from rollbook.errors import LedgerConflict
from rollbook.ledger import Ledger, tables
from rollbook.ledger.store import transaction
from tests.support.hostile import HONEST, OUTCOME, admission, attack
from tests.support.ledger import Kit, behind_the_guards, make_tasks, rows


@pytest.fixture(scope="module")
async def reader(ledger_url: str) -> AsyncIterator[Ledger]:
    ledger = Ledger.connect(ledger_url, role="rollbook_reader")
    yield ledger
    await ledger.aclose()


@pytest.fixture(scope="module")
async def victim(worker: Ledger) -> Kit:
    """A batch made by the worker role alone: one admitted, one masked, one open, the rest waiting."""
    kit = Kit(worker, batch_id="victim", tasks=make_tasks(6))
    await worker.register_task_set("tasks", kit.tasks)
    keys = await kit.keys()
    await kit.run(keys[0], "run-1", score=0.5)
    await kit.claim(keys[1])
    await kit.end(keys[1], 1, "run-1", infrastructure_failure_reason="timeout")
    await kit.claim(keys[2], "run-1")
    for step in range(4):
        await kit.step(keys[2], 1, "run-1", step, "DONE" if step == 3 else None)
    await kit.evaluate(keys[2], 1, "run-1", 0.25)
    return kit


@pytest.mark.parametrize("table", [table.name for table in tables.INSERT_ONLY])
@pytest.mark.parametrize("statement", ["UPDATE {} SET {} = {}", "DELETE FROM {}", "TRUNCATE {} CASCADE"])
async def test_insert_only(victim: Kit, ledger: Ledger, table: str, statement: str) -> None:
    first = next(iter(tables.metadata.tables[table].c)).name
    if table in ("task_set", "policy_script_name", "rerun_request"):
        first = "name" if table != "rerun_request" else "reason"
    said = statement.format(table, first, first)
    assert "permission denied" in await attack(victim.ledger, said)
    assert "never changed or deleted" in await attack(ledger, said), "the owner meets the guard"


@pytest.mark.parametrize("table", ["batch", "rollout", "sandbox"])
async def test_planned_rows_and_leases_are_never_deleted(victim: Kit, ledger: Ledger, table: str) -> None:
    assert "permission denied" in await attack(victim.ledger, f"DELETE FROM {table}")
    assert "never changed or deleted" in await attack(ledger, f"DELETE FROM {table}")


ROLLOUT = "(SELECT rollout_key FROM rollout WHERE batch_id = 'victim' ORDER BY plan_order OFFSET {} LIMIT 1)"
ADMITTED, MASKED, OPEN, WAITING = (ROLLOUT.format(number) for number in range(4))

LEGACY = {"policy": "'legacy-mask-sample-v1'", "termination": "'agent_won'", "reason": "'agent_won'", "action": "NULL"}
SILENT = {
    "evaluated": "false",
    "infra": "'sandbox_lost'",
    "action": "NULL",
    "termination": "'sandbox_lost'",
    "eligible": "false",
    "reason": "'sandbox_lost'",
    "score": "NULL",
    "reward": "NULL",
    "next": "'waiting'",
}
"""The evaluation says 0.25, the end says that nothing was evaluated and that another attempt is due."""
TIMEOUT = {
    "infra": "'timeout'",
    "action": "NULL",
    "termination": "'timeout'",
    "eligible": "false",
    "reason": "'timeout'",
}


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"score": "1", "reward": "1"}, "the score is the evaluator's or none"),
        ({"reward": "0.25", "mode": "'raw'"}, "reward_mode is the contract's"),
        ({"reward": "0.25"}, "outcome_reward_of_score"),
        ({"reward": "1"}, "outcome_reward_of_score"),
        ({"reward": "NULL"}, "outcome_reward_of_score"),
        ({"score": "NULL", "reward": "NULL"}, "the score is the evaluator's or none"),
        ({"score": "'NaN'", "reward": "1"}, "the score is the evaluator's or none"),
        ({"score": "'Infinity'", "reward": "1"}, "the score is the evaluator's or none"),
        ({"infra": "'timeout'"}, "outcome_"),
        (
            {"infra": "'bad luck'", "termination": "'bad luck'", "eligible": "false", "reason": "'bad luck'"},
            "vocabulary",
        ),
        ({"action": "'WIN'"}, "did not end so"),
        ({"action": "'FAIL'", "termination": "'agent_fail'"}, "did not end so"),
        ({"steps": "2"}, "did not end so"),
        ({"steps": "4"}, "did not end so"),
        ({"stop": "'model_response_empty'"}, "did not end so"),
        (
            {"action": "NULL", "stop": "'model_response_empty'", "termination": "'model_response_empty'"},
            "did not end so",
        ),
        ({"horizon": "true"}, "not the contract's step limit"),
        ({"action": "NULL", "horizon": "true", "termination": "'max_steps'", "steps": "0"}, "did not end so"),
        ({"action": "NULL", "horizon": "true", "termination": "'max_steps'", "steps": "15"}, "did not end so"),
        ({"action": "NULL", "done": "true", "termination": "'environment_done'"}, "did not end so"),
        ({"action": "NULL", "termination": "'max_steps'"}, "outcome_"),
        ({"termination": "'agent_fail'"}, "outcome_termination"),
        ({"eligible": "false", "reason": "'agent_done'"}, "outcome_eligibility"),
        ({"reason": "' '"}, "outcome_"),
        ({"policy": "''"}, "outcome_policy_of_closer"),
        ({"policy": "'legacy-mask-sample-v1'"}, "outcome_policy_of_closer"),
        ({"policy": "'rollbook-reconciliation-v1'"}, "outcome_policy_of_closer"),
        (LEGACY, "outcome_policy_of_closer"),
        (LEGACY | {"closed_by": "'import'"}, "imported exactly into batches that ran elsewhere"),
        ({"closed_by": "'import'"}, "imported exactly into batches that ran elsewhere"),
        (SILENT, "the score is the evaluator's or none"),
        (SILENT | {"closed_by": "'cancel'"}, "the score is the evaluator's or none"),
        (SILENT | {"evaluated": "true"}, "the score is the evaluator's or none"),
        ({"closed_by": "'cancel'"}, "knows nothing of its steps"),
        (TIMEOUT | {"closed_by": "'cancel'"}, "knows nothing of its steps"),
        (TIMEOUT | {"closed_by": "'cancel'", "steps": "0"}, "outcome_closed_from_outside"),
        (TIMEOUT | {"closed_by": "'reconcile'", "steps": "0"}, "outcome_closed_from_outside"),
        (TIMEOUT | {"closed_by": "'claim'", "steps": "0"}, "outcome_closed_from_outside"),
        (TIMEOUT | {"steps": "1"}, "did not take 1 steps"),
        (TIMEOUT | {"steps": "999"}, "did not take 999 steps"),
        (TIMEOUT | {"turns": "5"}, "has 4 turns, 3 model calls and 1 evaluations"),
        (TIMEOUT | {"calls": "9"}, "has 4 turns, 3 model calls and 1 evaluations"),
        ({"evaluations": "0"}, "has 4 turns, 3 model calls and 1 evaluations"),
        ({"next": "'waiting'"}, "outcome_another_attempt"),
        ({"next": "'running'"}, "outcome_another_attempt"),
        (
            {
                "infra": "'timeout'",
                "termination": "'timeout'",
                "eligible": "false",
                "reason": "'timeout'",
                "next": "'running'",
            },
            "outcome_another_attempt",
        ),
        ({"selected": "false"}, "the newest to end, it is selected"),
        ({"steps": "-1"}, "did not end so"),
        ({"attempt": "2"}, "not the newest"),
        ({"key": ADMITTED}, "outcome_pkey|not the newest|the score"),
        ({"key": WAITING}, "not the newest|violates|outcome_pkey|the score"),
        ({}, "ended without the rollout becoming final"),
    ],
)
async def test_prettified_outcomes(victim: Kit, ledger: Ledger, changes: dict[str, str], refusal: str) -> None:
    for attacker in (victim.ledger, ledger):
        assert re.search(refusal, await attack(attacker, OUTCOME.format(**(HONEST | {"key": OPEN} | changes))))
    await victim.clean()


@pytest.mark.parametrize("score", ["'NaN'", "'Infinity'", "'-Infinity'", "-0.01", "1.01"])
async def test_numbers_that_are_no_score_are_refused_even_without_triggers(
    victim: Kit, ledger: Ledger, score: str
) -> None:
    said = OUTCOME.format(**(HONEST | {"key": OPEN, "score": score, "reward": "1"}))
    with pytest.raises(IntegrityError, match=r"outcome_(score_range|reward_of_score)"):
        await behind_the_guards(ledger, said)
    evaluation = (
        "INSERT INTO evaluation (rollout_key, attempt_index, completed, score, guest_failed, task_digest, "
        f"evaluator_revision, row_digest) SELECT {WAITING}, 1, true, {score}, false, 'x', 'r', ''"
    )
    with pytest.raises(IntegrityError, match="evaluation_score_range"):
        await behind_the_guards(ledger, evaluation)


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        (f"UPDATE rollout SET state = 'waiting' WHERE rollout_key = {ADMITTED}", "only after a rerun request"),
        (f"UPDATE rollout SET state = 'queued' WHERE rollout_key = {MASKED}", "only"),
        (f"UPDATE rollout SET state = 'final' WHERE rollout_key = {OPEN}", "is open"),
        (f"UPDATE rollout SET state = 'waiting' WHERE rollout_key = {OPEN}", "is open"),
        (f"UPDATE rollout SET state = 'final' WHERE rollout_key = {WAITING}", "rollout_final"),
        (f"UPDATE rollout SET state = 'running' WHERE rollout_key = {WAITING}", "rollout_running"),
        (f"UPDATE rollout SET state = 'done' WHERE rollout_key = {WAITING}", "rollout_state"),
        (f"UPDATE rollout SET current_attempt = NULL WHERE rollout_key = {ADMITTED}", "the newest attempt"),
        (f"UPDATE rollout SET current_attempt = 2 WHERE rollout_key = {ADMITTED}", "the newest attempt"),
        (f"UPDATE rollout SET selected_attempt = NULL WHERE rollout_key = {ADMITTED}", "older attempt"),
        (f"UPDATE rollout SET selected_attempt = 1 WHERE rollout_key = {OPEN}", "did not end as the selected"),
    ],
)
async def test_resurrection(victim: Kit, ledger: Ledger, statement: str, refusal: str) -> None:
    for attacker in (victim.ledger, ledger):
        assert refusal in await attack(attacker, statement)
    await victim.clean()


@pytest.mark.parametrize("column", ["sample", "task_digest", "domain", "group_id", "plan_order", "rollout_key"])
async def test_identity_never_changes(victim: Kit, ledger: Ledger, column: str) -> None:
    change = f"{column} + 1" if column in ("sample", "plan_order") else f"{column} || 'x'"
    statement = f"UPDATE rollout SET {column} = {change} WHERE batch_id = 'victim'"
    assert "permission denied" in await attack(victim.ledger, statement)
    assert "never changes its identity" in await attack(ledger, statement)
    contract = "UPDATE batch SET contract_digest = contract_digest || 'x'"
    assert "permission denied" in await attack(victim.ledger, contract)
    assert "identity and contract never change" in await attack(ledger, contract)


ATTEMPT = """
    INSERT INTO attempt (rollout_key, attempt_index, workflow_id, run_id, claim, execution_id, trajectory_rollout_id,
        row_digest) SELECT {}, {}, 'w', 'zombie', 1, gen_random_uuid(), 'r', ''
"""


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        (ATTEMPT.format(ADMITTED, 2), "is final: no further attempt"),
        (ATTEMPT.format(OPEN, 2), "attempt 1 is still open"),
        (ATTEMPT.format(OPEN, 1), "the next attempt is 2"),
        (ATTEMPT.format(WAITING, 2), "the next attempt is 1"),
        (ATTEMPT.format(WAITING, 1), "without becoming the current one"),
        (admission(MASKED, 1, "runtime", 2, "true"), "was not evaluated"),
        (admission(ADMITTED, 1, "runtime", 1, "false"), "the next decision is 2"),
        (admission(ADMITTED, 1, "runtime", 7, "false"), "the next decision is 2"),
        (admission(ADMITTED, 1, "training", 1, "true"), "never trainable"),
        (admission(ADMITTED, 1, "other", 1, "false"), "admission_scope"),
        (admission(OPEN, 1, "runtime", 1, "false"), "foreign key"),
        (
            "INSERT INTO evaluation (rollout_key, attempt_index, completed, score, guest_failed, task_digest, "
            f"row_digest) SELECT {ADMITTED}, 1, true, 1, false, 'x', ''",
            "has ended, no evaluation is added",
        ),
        (
            f"INSERT INTO rerun_request (rollout_key, after_attempt, supersede, reason, requested_by, row_digest) "
            f"SELECT {ADMITTED}, 1, false, 'hope', 'me', ''",
            "needs supersede",
        ),
        (
            f"INSERT INTO rerun_request (rollout_key, after_attempt, supersede, reason, requested_by, row_digest) "
            f"SELECT {ADMITTED}, 1, true, 'hope', 'me', ''",
            "still final",
        ),
        (
            f"INSERT INTO rerun_request (rollout_key, after_attempt, supersede, reason, requested_by, row_digest) "
            f"SELECT {WAITING}, 1, true, 'hope', 'me', ''",
            "only a final row is run again",
        ),
    ],
)
async def test_forged_rows(victim: Kit, ledger: Ledger, statement: str, refusal: str) -> None:
    for attacker in (victim.ledger, ledger):
        assert refusal in await attack(attacker, statement)
    await victim.clean()


async def test_a_doubled_rollout_is_refused(victim: Kit) -> None:
    said = await attack(
        victim.ledger,
        "INSERT INTO rollout (rollout_key, batch_id, domain, task_id, sample, task_digest, group_id, rollout_index,"
        " plan_order) SELECT rollout_key || '0', batch_id, domain, task_id, sample, task_digest, group_id,"
        " rollout_index, 99 FROM rollout WHERE batch_id = 'victim' LIMIT 1",
    )
    assert "rollout_key_form" in said or "rollout_batch_id_task_id_sample_key" in said


async def test_a_row_cannot_be_planned_as_final(victim: Kit) -> None:
    said = await attack(
        victim.ledger,
        "INSERT INTO rollout (rollout_key, batch_id, domain, task_id, sample, task_digest, group_id, rollout_index,"
        " plan_order, state) SELECT batch_id || '/os/task-001/7', batch_id, 'os', 'task-001', 7, task_digest, group_id,"
        " 7, 99, 'final' FROM rollout WHERE batch_id = 'victim' AND task_id = 'task-001'",
    )
    assert "planned as waiting" in said


async def test_a_row_added_by_hand_is_found_by_the_audit(worker: Ledger) -> None:
    kit = Kit(worker, batch_id="padded", tasks=make_tasks(6))
    await worker.register_task_set("tasks", kit.tasks)
    await kit.keys()
    async with worker.engine.begin() as conn:
        await conn.execute(
            text(
                "INSERT INTO rollout (rollout_key, batch_id, domain, task_id, sample, task_digest, group_id,"
                " rollout_index, plan_order) SELECT batch_id || '/os/task-001/1', batch_id, 'os', 'task-001', 1,"
                " task_digest, group_id, 1, 99 FROM rollout WHERE batch_id = 'padded' AND task_id = 'task-001'"
            )
        )
    report = await worker.audit("padded")
    assert {"plan", "plan_count", "plan_digest"} <= {finding.kind for finding in report.findings}


async def test_the_reader_sees_views_and_nothing_else(victim: Kit, reader: Ledger) -> None:
    (row,) = await rows(reader, "SELECT * FROM rollcall WHERE batch_id = 'victim' AND domain = '(all)'")
    assert (row["planned"], row["admitted"], row["masked"]) == (6, 1, 1)
    for table in tables.metadata.tables:
        assert "permission denied" in await attack(reader, f"SELECT * FROM {table}")
    assert "cannot update view" in await attack(reader, "UPDATE rollout_result SET score = 1")
    assert "permission denied" in await attack(reader, "UPDATE current_admission SET admitted = true")


async def test_a_refusal_reaches_python_as_a_conflict(victim: Kit) -> None:
    with pytest.raises(LedgerConflict, match="only after a rerun request"):
        async with transaction(victim.ledger.engine) as conn:
            await conn.execute(text(f"UPDATE rollout SET state = 'waiting' WHERE rollout_key = {ADMITTED}"))
