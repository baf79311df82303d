"""Finalize: the evaluator's score or none, one answer per attempt, and the attempts that follow from an end."""

from itertools import product
from typing import Any

import pytest
from sqlalchemy import text

from models.batch import Control
from models.outcome import POLICY_STOPS, Infra, OutcomeFacts, classify
from rollbook.errors import Fenced, LedgerConflict
from rollbook.ledger import Ledger
from rollbook.ledger.tables import ELIGIBLE, TERMINATION
from tests.support.ledger import Kit, rows


async def ended(kit: Kit, key: str, score: float | None = 0.4, **changes: Any) -> Any:
    """Claim, evaluate (unless requested otherwise) and end one attempt."""
    claim = await kit.claim(key)
    if score is not None:
        await kit.evaluate(key, claim.attempt_index, "run-1", score)
    return await kit.end(key, claim.attempt_index, "run-1", **changes)


@pytest.mark.parametrize(
    ("score", "reward_mode", "reward"),
    [(1.0, "binary", 1.0), (0.4, "binary", 0.0), (0.4, "raw", 0.4), (0.0, "raw", 0.0), (0, "binary", 0.0)],
)
async def test_score_and_reward(kit: Kit, score: float, reward_mode: str, reward: float) -> None:
    key = (await kit.keys(reward_mode=reward_mode))[0]
    done = await ended(kit, key, score)
    assert (done.score, done.reward, done.admitted, done.another_attempt, done.selected) == (
        score,
        reward,
        True,
        False,
        True,
    )
    row = await kit.row(key)
    assert (row["state"], row["selected_attempt"]) == ("final", 1)
    await kit.clean()


async def test_without_an_evaluation_row_there_is_no_score(kit: Kit) -> None:
    """The request says evaluated, the ledger holds nothing: the closed reading, masked."""
    key = (await kit.keys())[0]
    done = await ended(kit, key, None)
    assert (done.termination_reason, done.admitted, done.score, done.reward) == (
        "evaluation_incomplete",
        False,
        None,
        None,
    )
    assert (await kit.row(key))["state"] == "final"


async def test_an_evaluation_that_could_not_look_is_no_zero(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    await kit.evaluate(key, 1, "run-1", None)
    done = await kit.end(key, 1, "run-1", infrastructure_failure_reason="evaluator_error")
    assert (done.score, done.reward, done.admitted) == (None, None, False)
    assert done.another_attempt, "the exchange with the guest failed, says the evaluation row"
    (end,) = await kit.outcomes(key)
    assert end["guest_failed"]


async def test_an_evaluation_whose_answer_was_lost_counts_all_the_same(kit: Kit) -> None:
    """The run never learnt of it, the ledger holds it: an attempt is not tried again as if its score were unknown."""
    keys = await kit.keys()
    done = await ended(kit, keys[0], 1.0, evaluation_completed=False)
    assert (done.termination_reason, done.score, done.another_attempt) == ("agent_done", 1.0, False)
    lost = {"infrastructure_failure_reason": "evaluator_error", "guest_failed": True}
    done = await ended(kit, keys[1], 1.0, **lost)
    assert (done.termination_reason, done.admitted, done.score) == ("evaluator_error", False, 1.0)
    assert not done.another_attempt, "the evaluator did look at the guest"
    await kit.clean()


async def test_a_failure_keeps_the_score_and_masks_it(kit: Kit) -> None:
    """An infrastructure failure is ineligible whatever the score."""
    key = (await kit.keys())[0]
    done = await ended(kit, key, 1.0, infrastructure_failure_reason="timeout", evaluation_completed=True)
    assert (done.admitted, done.score, done.reward, done.termination_reason) == (False, 1.0, 1.0, "timeout")
    await kit.clean()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "agent_done"),
        ({"terminal_action": "FAIL"}, "agent_fail"),
        ({"horizon_reached": True}, "max_steps"),
        ({"environment_done": True}, "environment_done"),
        ({"policy_stop_reason": "model_context_overflow"}, "model_context_overflow"),
    ],
)
async def test_every_evaluated_ending_of_the_policy_counts(kit: Kit, changes: dict[str, Any], reason: str) -> None:
    key = (await kit.keys())[0]
    done = await ended(kit, key, 0.0, **changes)
    assert (done.termination_reason, done.admitted, done.score) == (reason, True, 0.0)
    await kit.clean()


async def test_repeats_get_the_same_answer(kit: Kit) -> None:
    key = (await kit.keys())[0]
    first = await ended(kit, key, 0.4)
    assert await kit.end(key, 1, "run-1") == first
    with pytest.raises(LedgerConflict, match="steps: 1 -> 4"):
        await kit.end(key, 1, "run-1", steps=4)
    with pytest.raises(LedgerConflict, match="terminal_action: 'DONE' -> 'FAIL'"):
        await kit.end(key, 1, "run-1", terminal_action="FAIL")
    with pytest.raises(Fenced):
        await kit.end(key, 1, "run-2")
    assert len(await kit.outcomes(key)) == 1


async def test_a_failed_attempts_answer_repeats_too(kit: Kit) -> None:
    key = (await kit.keys())[0]
    first = await ended(kit, key, None, infrastructure_failure_reason="sandbox_lost")
    assert first.another_attempt
    await kit.claim(key, "run-1", 2)
    assert await kit.end(key, 1, "run-1", infrastructure_failure_reason="sandbox_lost") == first


RETRIED = [
    ("sandbox_start_failed", False),
    ("sandbox_lost", False),
    ("setup_interrupted", False),
    ("evaluation_interrupted", False),
    ("evaluator_error", True),
    ("setup_failed", False),
    ("task_timeout", False),
]
NOT_RETRIED = [
    ("timeout", False),
    ("model_timeout", False),
    ("action_timeout", False),
    ("cancelled", False),
    ("evaluator_error", False),
    ("rollout_error", False),
    ("desktop_broken", True),
]


@pytest.mark.parametrize(("reason", "guest_failed"), RETRIED)
async def test_endings_that_earn_an_attempt(kit: Kit, reason: str, guest_failed: bool) -> None:
    key = (await kit.keys())[0]
    done = await ended(kit, key, None, infrastructure_failure_reason=reason, guest_failed=guest_failed)
    assert done.another_attempt
    assert (await kit.row(key))["state"] == "running"
    assert (await kit.claim(key, "run-1", 2)).attempt_index == 2


async def test_without_a_model_server_the_rollout_waits_for_the_pump(kit: Kit) -> None:
    key = (await kit.keys())[0]
    done = await ended(kit, key, None, infrastructure_failure_reason="model_call_failed")
    assert not done.another_attempt, "not by this episode: its desktop would wait for the model"
    assert (await kit.row(key))["state"] == "waiting"
    assert (await kit.claim(key, "run-2", 1)).attempt_index == 2


@pytest.mark.parametrize(("reason", "guest_failed"), NOT_RETRIED)
async def test_endings_that_do_not(kit: Kit, reason: str, guest_failed: bool) -> None:
    key = (await kit.keys())[0]
    done = await ended(kit, key, None, infrastructure_failure_reason=reason, guest_failed=guest_failed)
    assert not done.another_attempt
    assert (await kit.row(key))["state"] == "final"
    assert (await kit.claim(key, "run-1", 2)).status == "final"


async def test_the_budget_ends_the_attempts(kit: Kit) -> None:
    key = (await kit.keys(max_attempts=3))[0]
    for n in (1, 2, 3):
        claim = await kit.claim(key, "run-1", n)
        assert claim.attempt_index == n
        done = await kit.end(key, n, "run-1", infrastructure_failure_reason="sandbox_lost")
        assert done.another_attempt == (n < 3)
    row = await kit.row(key)
    assert (row["state"], row["current_attempt"], row["selected_attempt"]) == ("final", 3, 3)
    await kit.clean()


async def test_a_superseded_attempt_does_not_burn_the_budget(kit: Kit) -> None:
    key = (await kit.keys(max_attempts=2))[0]
    await kit.claim(key, "run-1")
    await kit.claim(key, "run-2")
    await kit.claim(key, "run-3")
    assert (await kit.end(key, 3, "run-3", infrastructure_failure_reason="sandbox_lost")).another_attempt
    await kit.claim(key, "run-3", 2)
    assert not (await kit.end(key, 4, "run-3", infrastructure_failure_reason="sandbox_lost")).another_attempt


async def test_a_setup_that_fails_again_is_final(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    assert (await kit.end(key, 1, "run-1", infrastructure_failure_reason="setup_failed")).another_attempt
    await kit.claim(key, "run-1", 2)
    assert not (await kit.end(key, 2, "run-1", infrastructure_failure_reason="setup_failed")).another_attempt


async def test_the_newest_end_is_selected(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await ended(kit, key, None, infrastructure_failure_reason="sandbox_lost")
    await kit.claim(key, "run-1", 2)
    await kit.evaluate(key, 2, "run-1", 1.0)
    await kit.end(key, 2, "run-1")
    assert (await kit.row(key))["selected_attempt"] == 2
    await kit.clean()


@pytest.mark.parametrize(("how", "state"), [("stop", "waiting"), ("cancel", "final")])
async def test_an_attempt_that_would_have_been_earned_while_the_batch_ends(kit: Kit, how: str, state: str) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    if how == "stop":
        await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="stop"))
    else:
        await kit.ledger.mark_cancelling(kit.batch_id)
    done = await kit.end(key, 1, "run-1", infrastructure_failure_reason="sandbox_lost")
    assert not done.another_attempt
    assert (await kit.row(key))["state"] == state
    await kit.clean()


async def test_the_batch_is_whole_when_every_row_is_final(kit: Kit) -> None:
    keys = await kit.keys(tasks={"domains": ["os"]})
    await kit.run(keys[0])
    assert not await kit.ledger.batch_is_whole(kit.batch_id)
    await kit.run(keys[1], score=0.0)
    assert await kit.ledger.batch_is_whole(kit.batch_id)
    assert (await kit.ledger.batch_control(kit.batch_id)).closed_at is not None
    counts = await kit.ledger.counts(kit.batch_id)
    assert (counts.planned, counts.admitted, counts.masked, counts.waiting, counts.running) == (2, 2, 0, 0, 0)
    report = await kit.clean()
    assert report.ok
    assert (report.planned, report.final) == (2, 2)


def every_fact() -> list[OutcomeFacts]:
    """Every combination of facts that the model allows."""
    found = []
    for evaluated, infra, action, done, horizon, stop in product(
        (False, True), (None, *Infra), (None, "DONE", "FAIL"), (False, True), (False, True), (None, *POLICY_STOPS)
    ):
        try:
            facts = OutcomeFacts(
                evaluation_completed=evaluated,
                infrastructure_failure_reason=infra,
                terminal_action=action,
                environment_done=done,
                horizon_reached=horizon,
                policy_stop_reason=stop,
            )
        except ValueError:
            continue
        found.append(facts)
    return found


async def test_the_databases_classification_is_the_models(ledger: Ledger) -> None:
    cases = every_fact()
    assert len(cases) > 400
    columns = {name: [case.model_dump()[name] for case in cases] for name in OutcomeFacts.model_fields}
    query = f"""
        SELECT {TERMINATION} AS termination, {ELIGIBLE} AS eligible
        FROM unnest(CAST(:evaluation_completed AS boolean[]), CAST(:infrastructure_failure_reason AS text[]),
                    CAST(:terminal_action AS text[]), CAST(:environment_done AS boolean[]),
                    CAST(:horizon_reached AS boolean[]), CAST(:policy_stop_reason AS text[])) WITH ORDINALITY
            AS fact (evaluation_completed, infrastructure_failure_reason, terminal_action, environment_done,
                     horizon_reached, policy_stop_reason, place)
        ORDER BY place
    """
    said = await rows(ledger, query, **columns)
    for case, row in zip(cases, said, strict=True):
        rule = classify(case)
        assert (rule.termination_reason, rule.runtime_eligible) == (row["termination"], row["eligible"]), case


async def test_score_is_the_evaluators_even_for_raw_sql(kit: Kit) -> None:
    """The guard compares an outcome with the evaluation row for every writer."""
    key = (await kit.keys())[0]
    await kit.claim(key)
    await kit.evaluate(key, 1, "run-1", 0.25)
    statement = """
        INSERT INTO outcome (rollout_key, attempt_index, evaluation_completed, terminal_action, environment_done,
            horizon_reached, guest_failed, steps, termination_reason, runtime_eligible, runtime_admission_reason,
            runtime_admission_policy_id, score, reward, reward_mode, closed_by, selected, next_state, turns,
            model_calls, evaluations, row_digest)
        VALUES (:key, 1, true, 'DONE', false, false, false, 3, 'agent_done', true, 'valid_evaluated_outcome',
            'osworld-runtime-admission-v1', 1, 1, 'binary', 'episode', true, 'final', 0, 0, 1, '')
    """
    with pytest.raises(Exception, match="the score is the evaluator's or none"):
        async with kit.ledger.engine.begin() as conn:
            await conn.execute(text(statement), {"key": key})
