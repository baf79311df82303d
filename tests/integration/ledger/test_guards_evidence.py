"""Raw SQL against evidence and decisions: what was said, what was scored, and who decided in whose name."""

import re
from typing import Any

import pytest
from sqlalchemy import text

from models.admission import LEGACY_POLICY, POLICIES, RECONCILED_POLICY, RUNTIME_POLICY
from models.outcome import Infra
from rollbook.ledger import Ledger, ModelCall
from rollbook.ledger.sql import SQL, statements
from rollbook.ledger.tables import FAILURE_KINDS
from rollbook.policies.agent import OVERFLOW, TIMEOUT, TRANSPORT
from rollbook.policies.protocols.base import STOP_REASONS
from tests.support.hostile import BY_EPISODE, HONEST, OUTCOME, admission, attack, ending
from tests.support.ledger import Kit, behind_the_guards, ref, rows

CALL = """
    INSERT INTO model_call (rollout_key, attempt_index, step, parse_attempt, policy_kind, actions, terminal_action,
        policy_stop_reason, completed, accepted, parse_error, failure_kind, prompt_tokens, completion_tokens,
        row_digest)
    SELECT '{key}', 1, {step}, {parse}, 'x', {actions}, {action}, {stop}, {completed}, {accepted}, NULL, {failure},
        {prompt}, {reply}, ''
"""
PLAIN = {
    "step": "1",
    "parse": "1",
    "actions": "'[\"WAIT\"]'",
    "action": "NULL",
    "stop": "NULL",
    "completed": "true",
    "accepted": "true",
    "failure": "NULL",
    "prompt": "1",
    "reply": "1",
}


@pytest.fixture
async def victim(kit: Kit, worker: Ledger) -> Kit:
    """A batch of the worker role."""
    return Kit(worker, batch_id=kit.batch_id, tasks=kit.tasks)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"actions": "'[1, null]'"}, "model_call_actions_are_text"),
        ({"actions": "'[\"WAIT\", {}]'"}, "model_call_actions_are_text"),
        ({"actions": "'[[\"WAIT\"]]'"}, "model_call_actions_are_text"),
        ({"actions": "'{}'"}, "model_call_actions"),
        ({"actions": "'\"WAIT\"'"}, "model_call_actions"),
        ({"action": "'DONE'", "accepted": "false"}, "model_call_terminal_is_accepted"),
        ({"stop": "'tired'", "actions": "'[]'"}, "model_call_stop_vocabulary"),
        ({"failure": "'bad luck'", "accepted": "false"}, "model_call_failure_vocabulary"),
        ({"prompt": "-1"}, "model_call_tokens"),
        ({"reply": "-1"}, "model_call_tokens"),
        ({"prompt": "NULL", "reply": "-1"}, "model_call_tokens"),
    ],
)
async def test_calls_of_no_kind(victim: Kit, changes: dict[str, str], refusal: str) -> None:
    key = (await victim.keys())[0]
    await victim.claim(key)
    assert refusal in await attack(victim.ledger, CALL.format(key=key, **(PLAIN | changes)))


async def test_one_call_decides_a_step(victim: Kit) -> None:
    key = (await victim.keys())[0]
    await victim.claim(key)
    first = CALL.format(key=key, **PLAIN)
    for changes in ({"parse": "2"}, {"parse": "2", "accepted": "false", "stop": "'model_response_empty'"}):
        second = CALL.format(key=key, **(PLAIN | changes | {"actions": "'[]'"}))
        assert "model_call_decides_idx" in await attack(victim.ledger, first, second)
    call = ModelCall(step=1, policy_kind="x", actions=["WAIT"])
    await victim.ledger.commit_model_call(ref(key, 1), "run-1", call)
    other = call.model_copy(update={"parse_attempt": 2, "actions": ["press"]})
    stored = await victim.ledger.commit_model_call(ref(key, 1), "run-1", other)
    assert (stored.parse_attempt, stored.actions) == (1, ["WAIT"]), "a racing try gets what was decided first"


def test_the_vocabulary_is_the_policies() -> None:
    assert {OVERFLOW, TRANSPORT, TIMEOUT, *STOP_REASONS} == set(FAILURE_KINDS)


async def test_an_end_without_a_call_is_refused_and_found(victim: Kit, ledger: Ledger) -> None:
    """No call answered DONE, and no step was taken."""
    done, horizon, early, *_ = await victim.keys()
    for key in (done, horizon, early):
        await victim.claim(key)
        await victim.evaluate(key, 1, "run-1", 1.0)
    await victim.step(early, 1, "run-1", 0)
    await victim.step(early, 1, "run-1", 1)
    full = {"score": "1", "reward": "1"}
    limit = full | {"action": "NULL", "horizon": "true", "termination": "'max_steps'"}
    forged = [
        ending(done, **full),
        ending(done, **full, steps="0"),
        ending(horizon, **limit, steps="0"),
        ending(horizon, **limit, steps="15"),
        ending(early, **limit, steps="1"),
    ]
    for changes in forged:
        assert re.search("did not end so|step limit", await attack(victim.ledger, *changes))
    await victim.clean()
    for changes in (forged[1], forged[2], forged[4]):
        for statement in changes:
            await behind_the_guards(ledger, statement)
    found = {finding.subject for finding in (await ledger.audit(victim.batch_id)).findings if finding.kind == "facts"}
    assert found == {done, horizon, early}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE outcome SET steps = 1 WHERE rollout_key = :key",
        "UPDATE outcome SET steps = 3 WHERE rollout_key = :key",
        "UPDATE outcome SET turns = 2 WHERE rollout_key = :key",
        "UPDATE turn SET step = 7 WHERE rollout_key = :key AND step = 2",
        "UPDATE model_call SET step = 7 WHERE rollout_key = :key AND step = 2",
        "UPDATE model_call SET terminal_action = 'FAIL' WHERE rollout_key = :key AND step = 2",
        "UPDATE model_call SET accepted = false, terminal_action = NULL WHERE rollout_key = :key AND step = 2",
    ],
)
async def test_facts_that_the_evidence_does_not_bear_out_are_found(kit: Kit, change: str) -> None:
    key = (await kit.keys())[0]
    await kit.run(key)
    await kit.clean()
    assert await behind_the_guards(kit.ledger, change, key=key)
    assert "facts" in {finding.kind for finding in (await kit.ledger.audit(kit.batch_id)).findings}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("UPDATE outcome SET closed_by = 'import' WHERE rollout_key = :key", "ending"),
        (
            "UPDATE outcome SET score = NULL, reward = NULL, evaluation_completed = false WHERE rollout_key = :key",
            "score",
        ),
        ("UPDATE admission SET decided_by = 'claim' WHERE rollout_key = :key", "first_decision"),
        ("UPDATE batch SET closed_at = now() WHERE batch_id = split_part(:key, '/', 1)", "closed"),
    ],
)
async def test_what_the_guards_refuse_is_found_by_the_audit(kit: Kit, change: str, kind: str) -> None:
    key = (await kit.keys())[0]
    await kit.run(key)
    async with kit.ledger.engine.begin() as conn:
        await conn.execute(text("SET LOCAL session_replication_role = replica"))
        for name in ("outcome_score_iff_evaluated", "outcome_termination", "outcome_eligible_is_evaluated"):
            await conn.execute(text(f"ALTER TABLE outcome DROP CONSTRAINT {name}"))
        for name in ("outcome_eligibility", "outcome_admission_reason"):
            await conn.execute(text(f"ALTER TABLE outcome DROP CONSTRAINT {name}"))
        await conn.execute(text(change), {"key": key})
        found = set()
        for name, query in statements("audit_checks").items():
            if (await conn.execute(query, {"batch_id": kit.batch_id})).first():
                found.add(name)
        await conn.rollback()
    assert kind in found


async def test_a_known_score_is_never_dropped_for_another_attempt(victim: Kit) -> None:
    """Best-of-n by a workflow that vanishes: the score stays on record, and audit and scoreboard say so."""
    gone, taken, cancelled, *_ = await victim.keys()
    for key in (gone, taken, cancelled):
        await victim.claim(key)
        await victim.evaluate(key, 1, "run-1", 0.25)
    assert await victim.ledger.close_reconciled(gone, 1, "the workflow is gone") == "waiting"
    await victim.run(gone, score=1.0)
    await victim.run(taken, "run-2", score=1.0)
    await victim.ledger.close_open(victim.batch_id, "enough")
    ends = {key: (await victim.outcomes(key))[0] for key in (gone, taken, cancelled)}
    for key, reason in ((gone, Infra.RECONCILED), (taken, Infra.SUPERSEDED), (cancelled, Infra.CANCELLED)):
        end = ends[key]
        assert (end["termination_reason"], end["score"], end["reward"]) == (reason, 0.25, 0.0)
        assert (end["runtime_eligible"], end["evaluation_completed"], end["mask_sample"]) == (False, True, True)
    report = await victim.clean()
    notices = {notice.subject: notice.detail for notice in report.notices if notice.kind == "evaluated_then_closed"}
    assert notices.keys() == ends.keys()
    assert "score 0.25" in notices[gone]
    assert "another attempt was due" in notices[gone]
    query = "SELECT evaluated_then_closed FROM scoreboard WHERE batch_id = :b AND domain = '(all)'"
    assert await rows(victim.ledger, query, b=victim.batch_id) == [{"evaluated_then_closed": 3}]


async def test_an_evaluated_attempt_that_earns_another_is_counted_too(victim: Kit) -> None:
    key = (await victim.keys())[0]
    await victim.claim(key)
    await victim.evaluate(key, 1, "run-1", 0.0)
    assert (await victim.end(key, 1, "run-1", infrastructure_failure_reason="sandbox_lost")).another_attempt
    report = await victim.clean()
    assert [notice.kind for notice in report.notices] == ["evaluated_then_closed"]


async def test_the_first_decision_is_the_classification(victim: Kit) -> None:
    key = (await victim.keys())[0]
    await victim.claim(key)
    await victim.evaluate(key, 1, "run-1", 1.0)
    late: dict[str, Any] = {
        "infra": "'model_timeout'",
        "action": "NULL",
        "steps": "0",
        "termination": "'model_timeout'",
        "eligible": "false",
        "reason": "'model_timeout'",
        "score": "1",
        "reward": "1",
    }
    end = OUTCOME.format(**(HONEST | {"key": f"'{key}'"} | late))
    honest = {"policy": f"'{RUNTIME_POLICY}'", "reason": "'model_timeout'", "by": "'episode'"}
    for admitted, changes in (
        ("true", {}),
        ("true", {"reason": BY_EPISODE["reason"]}),
        ("false", {"reason": "'because'"}),
        ("false", {"policy": "'p'"}),
        ("false", {"by": "'ann'"}),
    ):
        first = admission(f"'{key}'", 1, "runtime", 1, admitted, **(honest | changes))
        assert "the first runtime decision is the classification" in await attack(victim.ledger, end, first)


@pytest.mark.parametrize(
    ("scope", "said", "refusal"),
    [
        ("runtime", {"policy": RUNTIME_POLICY}, "not what policy"),
        ("runtime", {"policy": RUNTIME_POLICY, "reason": "valid_evaluated_outcome"}, "not what policy"),
        ("runtime", {"policy": "exclude-in-doubt-v1"}, "not what policy"),
        ("runtime", {"policy": LEGACY_POLICY}, "not what policy"),
        ("runtime", {"policy": RECONCILED_POLICY}, "not what policy"),
        ("runtime", {"policy": "rollbook-training-admission-v1"}, "not what policy"),
        ("training", {"policy": RUNTIME_POLICY}, "not what policy"),
        ("training", {"policy": "rollbook-exact-training-admission-v1"}, "not what policy"),
        ("runtime", {"by": "episode"}, "never again"),
        ("runtime", {"by": "import"}, "never again"),
    ],
)
async def test_nobody_decides_in_anothers_name(
    victim: Kit, ledger: Ledger, scope: str, said: dict[str, str], refusal: str
) -> None:
    """A timeout with a full score: by hand it may be admitted, with a reason; no built-in policy would do it."""
    identity = {"sampling_event_id": victim.batch_id, "source_group_ids": {t.task_id: t.task_id for t in victim.tasks}}
    key = (await victim.keys(identity=identity))[0]
    await victim.claim(key)
    await victim.step(key, 1, "run-1", 0)
    await victim.step(key, 1, "run-1", 1)
    await victim.evaluate(key, 1, "run-1", 1.0)
    await victim.end(key, 1, "run-1", infrastructure_failure_reason="timeout")
    quoted = {name: f"'{value}'" for name, value in said.items()}
    forged = admission(f"'{key}'", 1, scope, 2, "true", **quoted)
    assert refusal in await attack(victim.ledger, forged)
    await victim.clean()
    await behind_the_guards(ledger, forged)
    await behind_the_guards(ledger, "UPDATE rollout SET decisions = decisions + 1 WHERE rollout_key = :key", key=key)
    kinds = {finding.kind for finding in (await ledger.audit(victim.batch_id)).findings}
    assert "named_policy" in kinds


def test_every_policy_of_ours_is_guarded() -> None:
    for script in ("guards.sql", "audit_checks.sql"):
        said = (SQL / script).read_text()
        for policy_id in (*POLICIES, LEGACY_POLICY, RECONCILED_POLICY):
            assert f"'{policy_id}'" in said, (script, policy_id)
