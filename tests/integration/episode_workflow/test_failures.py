"""Consequences of failed activities for an episode: facts, evaluation, new attempts."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from models import names
from models.episode import Acted, Decision, Evaluated, Examined
from models.outcome import Cause, CauseKind, Infra
from tests.doubles.fake_activities import FakeActivities, Hook, fails
from tests.support.episodes import BEGIN, CLOSE, END, SCORE, begin, play

# the activity that fails, whether what the agent did is evaluated
PLACES = [
    (names.START_SANDBOX, Infra.SANDBOX_START_FAILED, False),
    (names.PREPARE_TASK, Infra.SETUP_FAILED, False),
    (names.PREPARE_TASK, Infra.SETUP_INTERRUPTED, False),
    (names.PREPARE_TASK, Infra.SANDBOX_LOST, False),
    (names.OBSERVE, Infra.SANDBOX_LOST, False),
    (names.DECIDE, Infra.MODEL_CALL_FAILED, True),
    (names.DECIDE, Infra.MODEL_TIMEOUT, True),
    (names.ACT, Infra.ACTION_TIMEOUT, True),
    (names.ACT, Infra.ROLLOUT_ERROR, True),
    (names.ACT, Infra.SANDBOX_LOST, False),
]


@pytest.mark.parametrize(("activity", "reason", "evaluated"), PLACES)
async def test_failures_are_facts_and_the_desktop_is_stopped(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str, reason: Infra, evaluated: bool
) -> None:
    fakes.budget = 1
    fakes.on[activity] = fails(reason, "words of the failure")
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted) == (reason, False)
    assert (names.EVALUATE in fakes.log) is evaluated
    assert result.score is None, "a score that does not count is not shown"
    assert fakes.log[-2:] == END
    assert fakes.count(names.FINALIZE) == fakes.count(names.STOP_SANDBOX) == 1
    assert "words of the failure" in fakes.outcome.detail


@pytest.mark.parametrize("activity", SCORE)
@pytest.mark.parametrize("reason", [Infra.EVALUATOR_ERROR, Infra.EVALUATION_INTERRUPTED, Infra.SANDBOX_LOST])
async def test_an_evaluation_that_failed_is_no_zero(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str, reason: Infra
) -> None:
    fakes.budget = 1
    fakes.on[activity] = fails(reason)
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted, result.score, result.reward) == (reason, False, None, None)
    assert not fakes.outcome.facts.evaluation_completed
    assert fakes.outcome.facts.terminal_action == "DONE"


async def test_an_evaluator_that_could_not_look_earns_a_fresh_desktop(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    async def unlucky_once(request: Any) -> Evaluated:
        if request.attempt.attempt_index == 1:
            return Evaluated(completed=False, guest_failed=True, reason=Infra.EVALUATOR_ERROR, detail="no answer")
        return Evaluated(completed=True, score=0.5)

    fakes.on[names.EVALUATE] = unlucky_once
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason, result.score) == (2, "agent_done", 0.5)
    assert fakes.requests[names.FINALIZE][0].guest_failed


async def test_guest_trouble_travels_with_the_error(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.on[names.EVALUATE] = fails(Infra.EVALUATOR_ERROR, "no answer", names.GUEST_FAILED)
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason) == (3, "evaluator_error")


async def test_an_evaluators_own_error_is_final(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.on[names.EVALUATE] = fails(Infra.EVALUATOR_ERROR, "KeyError")
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason, result.admitted) == (1, "evaluator_error", False)


async def test_a_lost_desktop_is_replaced(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    async def dies_once(request: Any) -> Acted:
        if request.attempt.attempt_index == 1:
            raise ApplicationError("gone", type=Infra.SANDBOX_LOST, non_retryable=True)
        return fakes.acted()

    fakes.on[names.ACT] = dies_once
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason, result.admitted) == (2, "agent_done", True)
    first = [*BEGIN, names.DECIDE, names.ACT, *CLOSE]
    assert fakes.log == [*first, *BEGIN, names.DECIDE, names.ACT, names.DECIDE, *SCORE, *CLOSE]
    assert [one.sandbox_key for one in (call.desktop for call in fakes.requests[names.ACT])] == ["k1", "k2"]
    assert [attempt.attempt_index for attempt in fakes.requests[names.STOP_SANDBOX]] == [1, 2]


def finds(kind: CauseKind, *, tampered: bool = False) -> Hook:
    """An examination by a provider that has evidence."""

    async def examined(request: Any) -> Examined:
        detail = "app.py was changed" if tampered else ""
        return Examined(cause=Cause(kind=kind, detail="so it says"), tampered=tampered, detail=detail)

    return examined


@pytest.mark.parametrize(
    ("activity", "kind", "attempts", "reason"),
    [
        (names.ACT, "guest", 1, "desktop_broken"),
        (names.ACT, "host", 3, "sandbox_lost"),
        (names.ACT, "unknown", 3, "sandbox_lost"),
        (names.EVALUATE, "guest", 1, "desktop_broken"),
        # before the agent acted its guest fails by accident
        (names.OBSERVE, "guest", 3, "sandbox_lost"),
    ],
)
async def test_whose_doing_it_was_decides_what_follows(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str, kind: CauseKind, attempts: int, reason: str
) -> None:
    fakes.on[activity] = fails(Infra.SANDBOX_LOST, "gone")
    fakes.on[names.EXAMINE_DESKTOP] = finds(kind)
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason, result.score) == (attempts, reason, None)
    assert fakes.requests[names.EXAMINE_DESKTOP][0].failed
    assert fakes.outcome.detail == f"gone; cause {kind}: so it says"


async def test_a_score_from_another_guest_server_is_none(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.on[names.EXAMINE_DESKTOP] = finds("unknown", tampered=True)
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason, result.score) == (1, "desktop_broken", None)
    assert not fakes.requests[names.EXAMINE_DESKTOP][0].failed


async def test_what_the_guest_refuses_before_the_agent_acted_is_a_lost_desktop(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    fakes.on[names.PREPARE_TASK] = fails(Infra.DESKTOP_BROKEN, "no records")
    assert (await play(env, fakes)).termination_reason == "sandbox_lost"


async def test_without_the_providers_look_a_score_does_not_count(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    fakes.budget = 1
    fakes.on[names.EXAMINE_DESKTOP] = fails(Infra.SANDBOX_LOST, "the engine is away")
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted) == ("sandbox_lost", False)
    assert "the engine is away" in fakes.outcome.detail


async def test_the_ledger_decides_when_it_is_enough(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.on[names.START_SANDBOX] = fails(Infra.SANDBOX_START_FAILED)
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason) == (3, "sandbox_start_failed")
    assert fakes.log == [names.CLAIM, names.START_SANDBOX, *END] * 3
    assert [request.n for request in fakes.requests[names.CLAIM]] == [1, 2, 3]


async def test_an_action_that_ran_out_of_time_is_seen_and_scored(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    async def late(request: Any) -> Acted:
        return fakes.acted().model_copy(update={"failure": Infra.ACTION_TIMEOUT})

    fakes.on[names.ACT] = late
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason, result.score) == (1, "action_timeout", None)
    assert names.EVALUATE in fakes.log


async def test_a_policy_without_an_answer_is_a_transport_failure(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    fakes.budget = 1
    fakes.decisions = [Decision(model_call_completed=False, summary="502")]
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted) == ("model_call_failed", False)
    assert names.EVALUATE in fakes.log


async def test_passing_trouble_is_waited_out(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    """No slot is held and no attempt is spent while desktops are short or the ledger is away."""
    refusals = dict.fromkeys([names.CLAIM, names.START_SANDBOX, names.FINALIZE, names.STOP_SANDBOX], 4)

    def hesitant(name: str, answer: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        async def hook(request: Any) -> Any:
            refusals[name] -= 1
            if refusals[name] >= 0:
                raise ApplicationError("busy", type="CapacityBusy")
            return answer(request)

        return hook

    fakes.on[names.CLAIM] = hesitant(names.CLAIM, lambda request: fakes.claimed(request.n))
    fakes.on[names.START_SANDBOX] = hesitant(names.START_SANDBOX, fakes.desktop)
    fakes.on[names.FINALIZE] = hesitant(names.FINALIZE, fakes.finalized)
    fakes.on[names.STOP_SANDBOX] = hesitant(names.STOP_SANDBOX, lambda request: None)
    result = await play(env, fakes)
    assert (result.attempts, result.termination_reason) == (1, "agent_done")
    assert all(fakes.count(name) == 5 for name in refusals)


async def test_a_desktop_that_cannot_be_stopped_changes_nothing(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    fakes.on[names.STOP_SANDBOX] = fails(Infra.ROLLOUT_ERROR)
    result = await play(env, fakes)
    assert (result.status, result.termination_reason, result.admitted) == ("final", "agent_done", True)


async def test_an_end_that_the_ledger_refuses_fails_loudly(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.on[names.FINALIZE] = fails("LedgerConflict", "another end is on record")
    handle = await begin(env, fakes)
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "LedgerRefused"
    assert "another end is on record" in str(caught.value.cause)
    assert fakes.log[-1] == names.STOP_SANDBOX


async def test_an_ending_of_no_vocabulary_is_a_failure_not_a_hang(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    fakes.decisions = [Decision(policy_stop_reason="bored")]
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted, result.attempts) == ("rollout_error", False, 1)
    assert "'bored'" in fakes.outcome.detail
    assert fakes.log[-5:] == [*SCORE, *CLOSE]
