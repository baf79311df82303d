"""Decisions in the name of a rule are exactly what the rule says, and a known score is not rolled again in silence."""

from typing import Any

import pytest

from models.admission import (
    EXACT_TRAINING_POLICY,
    EXCLUDE_IN_DOUBT_POLICY,
    LEGACY_POLICY,
    POLICIES,
    RECONCILED_POLICY,
    TRAINING_POLICY,
    AdmissionDecision,
)
from models.episode import Observation
from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger, ModelCall
from rollbook.ledger.admission import PolicyToReapply
from tests.support.hostile import admission, attack, ending
from tests.support.ledger import Kit, artifact, behind_the_guards, ref, rows

VALID_SAMPLE, MASKED_SAMPLE = "valid_training_sample", "rollout_sample_masked"
NO_TOKENS = "exact_sampled_token_ids_unavailable"


@pytest.fixture
async def victim(kit: Kit, worker: Ledger) -> Kit:
    """A batch of the worker role."""
    return Kit(worker, batch_id=kit.batch_id, tasks=kit.tasks)


def trainer(kit: Kit) -> dict[str, Any]:
    groups = {task.task_id: task.task_id for task in kit.tasks}
    return {"identity": {"sampling_event_id": kit.batch_id, "source_group_ids": groups}}


async def almost(kit: Kit, key: str) -> None:
    """All of an episode but its end."""
    await kit.claim(key)
    for step in range(3):
        await kit.step(key, 1, "run-1", step, "DONE" if step == 2 else None)
    await kit.evaluate(key, 1, "run-1", 1.0)


FULL = {"steps": "2", "score": "1", "reward": "1"}
BY_RULE = {"policy": f"'{TRAINING_POLICY}'", "reason": f"'{VALID_SAMPLE}'", "by": "'episode'"}


@pytest.mark.parametrize(
    "changes",
    [
        None,
        {"admitted": "false"},
        {"admitted": "false", "reason": "'i do not like it'"},
        {"admitted": "false", "reason": f"'{MASKED_SAMPLE}'"},
        {"policy": f"'{EXACT_TRAINING_POLICY}'", "admitted": "false", "reason": f"'{NO_TOKENS}'"},
        {"policy": "'p'"},
        {"by": "'ann'"},
        {"reason": "'because'"},
    ],
)
async def test_a_trainers_rollout_ends_with_the_training_decision_of_the_rule(
    victim: Kit, ledger: Ledger, changes: dict[str, str] | None
) -> None:
    key = (await victim.keys(**trainer(victim)))[0]
    await almost(victim, key)
    outcome, first, final = ending(key, **FULL)
    statements = [outcome, first, final]
    if changes is not None:
        said = BY_RULE | {name: value for name, value in changes.items() if name != "admitted"}
        statements.append(admission(f"'{key}'", 1, "training", 1, changes.get("admitted", "true"), **said))
    refusal = await attack(victim.ledger, *statements)
    assert "without the training decision of the rule" in refusal or "not what policy" in refusal
    await victim.clean()
    for statement in statements:
        await behind_the_guards(ledger, statement)
    kinds = {finding.kind for finding in (await ledger.audit(victim.batch_id)).findings}
    assert "first_decision" in kinds


async def test_every_way_to_end_decides_upon_training(victim: Kit) -> None:
    run, failed, taken, gone, cancelled, never, *_ = await victim.keys(**trainer(victim))
    await victim.run(run)
    for key in (failed, taken, gone, cancelled):
        await victim.claim(key)
    await victim.end(failed, 1, "run-1", infrastructure_failure_reason="timeout")
    await victim.run(taken, "run-2")
    await victim.ledger.close_reconciled(gone, 1, "gone")
    await victim.ledger.close_open(victim.batch_id, "enough")
    query = """
        SELECT count(*) AS ends, count(admission.reason) AS decided, count(*) FILTER (WHERE admitted) AS admitted
        FROM outcome LEFT JOIN admission ON (admission.rollout_key, admission.attempt_index, scope, decision_index)
            = (outcome.rollout_key, outcome.attempt_index, 'training', 1)
        WHERE split_part(outcome.rollout_key, '/', 1) = :b
    """
    assert never
    assert await rows(victim.ledger, query, b=victim.batch_id) == [{"ends": 8, "decided": 8, "admitted": 2}]
    await victim.clean()


@pytest.mark.parametrize(
    ("policy_id", "scope", "admitted", "reason"),
    [
        (EXCLUDE_IN_DOUBT_POLICY, "runtime", "false", "i dislike it"),
        (EXCLUDE_IN_DOUBT_POLICY, "runtime", "false", "action_in_doubt"),
        (EXCLUDE_IN_DOUBT_POLICY, "runtime", "true", "action_in_doubt"),
        (TRAINING_POLICY, "training", "false", MASKED_SAMPLE),
        (TRAINING_POLICY, "training", "true", "because"),
        (EXACT_TRAINING_POLICY, "training", "true", VALID_SAMPLE),
        (EXACT_TRAINING_POLICY, "training", "false", "model_call_evidence_unavailable"),
        (EXACT_TRAINING_POLICY, "training", "false", MASKED_SAMPLE),
    ],
)
async def test_a_rule_says_no_more_and_no_less(
    victim: Kit, ledger: Ledger, policy_id: str, scope: str, admitted: str, reason: str
) -> None:
    key = (await victim.keys(**trainer(victim)))[0]
    await victim.run(key)
    index = 2
    forged = admission(f"'{key}'", 1, scope, index, admitted, policy=f"'{policy_id}'", reason=f"'{reason}'")
    assert "not what policy" in await attack(victim.ledger, forged)
    await victim.clean()
    await behind_the_guards(ledger, forged)
    await behind_the_guards(ledger, "UPDATE rollout SET decisions = decisions + 1 WHERE rollout_key = :key", key=key)
    assert "named_policy" in {finding.kind for finding in (await ledger.audit(victim.batch_id)).findings}


@pytest.mark.parametrize("derived", [True, False])
async def test_every_rule_decides_a_batch_and_the_guards_agree(kit: Kit, derived: bool) -> None:
    """Masked, admitted, in doubt, with and without tokens, by hand in between: the guards say what the models say."""
    plain, doubted, exact, partly, timeout, masked = await kit.keys(**({} if derived else trainer(kit)))
    await kit.run(plain)
    tokens = artifact("tokens")
    played: list[tuple[str, str, dict[str, Any]]] = [
        (doubted, "in_doubt", {}),
        (exact, "ok", {"tokens": tokens, "telemetry": {"token_problems": []}}),
        (partly, "ok", {"tokens": tokens, "telemetry": {"token_problems": ["exact_sampled_token_ids_invalid"]}}),
    ]
    for key, status, more in played:
        await kit.claim(key)
        await kit.step(key, 1, "run-1", 0)
        call = ModelCall(step=1, policy_kind="x", actions=["WAIT"], terminal_action="DONE", **more)
        await kit.ledger.commit_model_call(ref(key, 1), "run-1", call)
        await kit.ledger.commit_turn(
            ref(key, 1),
            "run-1",
            step=1,
            observation=Observation(screenshot=artifact("seen")),
            actions=[{"status": status}],
            started_at=0.0,
        )
        await kit.evaluate(key, 1, "run-1", 1.0)
        await kit.end(key, 1, "run-1")
    await kit.claim(timeout)
    await kit.end(timeout, 1, "run-1", infrastructure_failure_reason="timeout")
    await kit.run(masked)
    popup = AdmissionDecision(policy_id="manual", admitted=False, reason="a popup")
    await kit.ledger.decide_admission(masked, popup, decided_by="ann")
    for policy_id in (*POLICIES, *POLICIES):
        await kit.ledger.reapply_policy(
            kit.batch_id, PolicyToReapply(policy_id, "to compare", "ann", override_manual=True)
        )
    await kit.clean()
    exactly = PolicyToReapply("rollbook-exact-training-admission-v1", "to train", "ann", override_manual=True)
    await kit.ledger.reapply_policy(kit.batch_id, exactly)
    query = (
        "SELECT rollout_key FROM current_admission WHERE scope = 'training' AND admitted AND rollout_key LIKE :batch"
    )
    trained = [row["rollout_key"] for row in await rows(kit.ledger, query, batch=f"{kit.batch_id}/%")]
    assert trained == ([] if derived else [exact]), "an artifact that holds half of the tokens is not all of them"


async def test_a_person_decides_in_no_rules_name(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.run(key)
    for policy_id in (*POLICIES, LEGACY_POLICY, RECONCILED_POLICY):
        decision = AdmissionDecision(policy_id=policy_id, admitted=False, reason="i dislike it")
        with pytest.raises(InvalidInput, match=r"policy_id: .* is a rule and decides for itself"):
            await kit.ledger.decide_admission(key, decision, decided_by="ann")


async def test_a_cancelled_attempt_whose_score_was_known_is_counted_when_run_again(victim: Kit) -> None:
    """Best-of-n: evaluated 0, cancelled before it was finalized, run again without a word, 1."""
    again, left, *_ = await victim.keys()
    for key in (again, left):
        await victim.claim(key)
        await victim.evaluate(key, 1, "run-1", 0.0)
        await victim.end(key, 1, "run-1", infrastructure_failure_reason="cancelled")
    await victim.ledger.request_rerun(victim.batch_id, [again], reason="again", requested_by="me")
    await victim.run(again, "run-2", score=1.0)
    report = await victim.clean()
    notices = [notice for notice in report.notices if notice.kind == "evaluated_then_closed"]
    assert [notice.subject for notice in notices] == [again]
    assert "it was asked to run again" in notices[0].detail
    query = "SELECT evaluated_then_closed FROM scoreboard WHERE batch_id = :b AND domain = '(all)'"
    assert await rows(victim.ledger, query, b=victim.batch_id) == [{"evaluated_then_closed": 1}]


RERUN = """
    INSERT INTO rerun_request (rollout_key, after_attempt, supersede, reason, requested_by, row_digest)
    SELECT '{}', 1, false, 'hope', 'me', ''
"""
ATTEMPT = """
    INSERT INTO attempt (rollout_key, attempt_index, workflow_id, run_id, claim, execution_id, trajectory_rollout_id,
        row_digest) SELECT '{key}', 2, '{key}', 'r2', 1, gen_random_uuid(), 'r', ''
"""


async def test_what_counted_is_superseded_though_it_was_masked_meanwhile(victim: Kit) -> None:
    key = (await victim.keys())[0]
    await victim.run(key, score=0.0)
    mask = admission(f"'{key}'", 1, "runtime", 2, "false")
    assert "needs supersede" in await attack(victim.ledger, mask, RERUN.format(key))


async def test_no_attempt_follows_a_final_end_in_one_transaction(victim: Kit) -> None:
    key = (await victim.keys())[0]
    await almost(victim, key)
    outcome, first, _ = ending(key, **FULL)
    assert "no other was requested" in await attack(victim.ledger, outcome, first, ATTEMPT.format(key=key))


async def test_more_attempts_than_allowed_are_found(victim: Kit, ledger: Ledger) -> None:
    key = (await victim.keys(max_attempts=2))[0]
    for number in (1, 2):
        await victim.claim(key, f"run-{number}")
        await victim.end(key, number, f"run-{number}", infrastructure_failure_reason="sandbox_lost")
    await victim.clean()
    change = "UPDATE outcome SET next_state = 'running' WHERE rollout_key = :key AND attempt_index = 2"
    assert await behind_the_guards(ledger, change, key=key)
    found = (await ledger.audit(victim.batch_id)).findings
    assert [finding.subject for finding in found if finding.kind == "max_attempts"] == [key]
