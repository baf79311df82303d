"""The deadline of an episode, the backstop behind it, and how freezing stops both."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from models import names
from models.episode import Acted, Decision, Evaluated, PhaseDone
from models.outcome import BACKSTOP_S, Infra
from tests.doubles.fake_activities import FakeActivities, fake_worker
from tests.support.episodes import BEGIN, CLOSE, SCORE, Handle, begin, frozen, play, replay


def in_a_hurry(fakes: FakeActivities, deadline_s: float, worked_s: float) -> None:
    """A deadline, and the work that each activity reports."""
    fakes.plan = fakes.plan.model_copy(update={"deadline_s": deadline_s})
    fakes.worked_s = worked_s


async def test_the_deadline_ends_the_loop_and_evaluation_follows(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    in_a_hurry(fakes, 40, 10)  # setup, look, decision, action
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted, result.attempts) == ("timeout", False, 1)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, *SCORE, *CLOSE]
    assert result.score is None, "the ledger keeps the score; what does not count is not shown as one"


async def test_a_decision_gets_the_seconds_that_are_left(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    in_a_hurry(fakes, 100, 10)
    await play(env, fakes)
    assert [request.budget_s for request in fakes.requests[names.DECIDE]] == [80, 60]


async def test_an_ending_that_came_in_time_to_the_runner_counts(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    """The deadline is looked at between steps: DONE of a decision that began before it is the ending."""
    in_a_hurry(fakes, 41, 10)  # the second decision begins with one second left
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted) == ("agent_done", True)


async def test_the_deadline_may_come_within_a_decision(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    async def cut(request: Any) -> None:
        raise ApplicationError("step 1: no reply", type=Infra.TIMEOUT, non_retryable=True)

    fakes.on[names.DECIDE] = cut
    result = await play(env, fakes)
    assert (result.termination_reason, result.score, result.attempts) == ("timeout", None, 1)


async def test_a_deadline_before_the_first_step_still_has_a_desktop_to_evaluate(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    in_a_hurry(fakes, 20, 10)
    result = await play(env, fakes)
    assert (result.termination_reason, result.score) == ("timeout", None)
    assert names.DECIDE not in fakes.log


@pytest.mark.parametrize("activity", [names.PREPARE_TASK, names.OBSERVE, names.DECIDE, names.ACT])
async def test_waiting_is_not_on_the_clock(env: WorkflowEnvironment, fakes: FakeActivities, activity: str) -> None:
    """Tries that failed, and the pauses between them, take longer than the whole deadline."""
    in_a_hurry(fakes, 10, 1)
    tries = 0

    async def fails(request: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ApplicationError("away", type="RateLimited", next_retry_delay=timedelta(seconds=600))
        answers: dict[str, Callable[[], Any]] = {
            names.PREPARE_TASK: PhaseDone,
            names.OBSERVE: fakes.seen,
            names.ACT: fakes.acted,
        }
        return answers[activity]() if activity in answers else Decision(terminal_action="DONE")

    fakes.on[activity] = fails
    result = await play(env, fakes)
    assert (result.termination_reason, result.attempts) == ("agent_done", 1)


def away_at_first(answer: Callable[[], Any], failures: int) -> Any:
    """The hook of an activity whose first tries fail in the first attempt, with two hours between them."""
    left = failures

    async def hook(request: Any) -> Any:
        nonlocal left
        if left and request.attempt.attempt_index == 1:
            left -= 1
            raise ApplicationError("away", type="ConfigError", next_retry_delay=timedelta(hours=2))
        return answer()

    return hook


async def test_the_backstop_earns_another_attempt(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    """More than six hours went by in waiting: no fact about the rollout, and nothing is evaluated."""
    fakes.on[names.PREPARE_TASK] = away_at_first(PhaseDone, 2)
    fakes.on[names.DECIDE] = away_at_first(lambda: Decision(terminal_action="DONE"), 2)
    result = await play(env, fakes)
    assert (result.termination_reason, result.attempts) == ("agent_done", 2)
    first = fakes.requests[names.FINALIZE][0].facts
    assert (first.infrastructure_failure_reason, first.evaluation_completed) == (Infra.TASK_TIMEOUT, False)
    assert fakes.count(names.EVALUATE) == 1


@pytest.mark.parametrize(
    ("activity", "reason"),
    [
        (names.PREPARE_TASK, Infra.SETUP_INTERRUPTED),
        (names.OBSERVE, Infra.SANDBOX_LOST),
        (names.DECIDE, Infra.MODEL_CALL_FAILED),
        (names.ACT, Infra.TASK_TIMEOUT),
        (names.EVALUATE, Infra.TASK_TIMEOUT),
    ],
)
async def test_an_activity_that_no_worker_could_do_earns_another_attempt(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str, reason: Infra
) -> None:
    answers: dict[str, Callable[[], Any]] = {
        names.PREPARE_TASK: PhaseDone,
        names.OBSERVE: fakes.seen,
        names.DECIDE: lambda: Decision(terminal_action="DONE"),
        names.ACT: fakes.acted,
        names.EVALUATE: lambda: Evaluated(completed=True, score=1.0),
    }
    fakes.on[activity] = away_at_first(answers[activity], 99)
    result = await play(env, fakes)
    assert (result.termination_reason, result.attempts) == ("agent_done", 2)
    assert fakes.requests[names.FINALIZE][0].facts.infrastructure_failure_reason is reason


async def test_neither_waiting_for_a_desktop_nor_evaluation_is_under_the_backstop(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    handle = await begin(env, fakes)
    await handle.result()
    story = await marks(handle)
    began, ended = story.index(f"timer {BACKSTOP_S:g} started"), story.index("timer canceled")
    assert story.index("completed start_sandbox") < began < story.index("scheduled prepare_task")
    assert story.index("completed decide", began) < ended < story.index("completed run_postconfig")
    assert sum("timer" in mark for mark in story) == 2, "one timer per attempt, not one per step"


async def marks(handle: Handle) -> list[str]:
    """Activities and timers of a history, in order."""
    found: list[str] = []
    scheduled: dict[int, str] = {}
    async for event in handle.fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            scheduled[event.event_id] = name
            found.append(f"scheduled {name}")
        elif event.HasField("activity_task_completed_event_attributes"):
            found.append(f"completed {scheduled[event.activity_task_completed_event_attributes.scheduled_event_id]}")
        elif event.HasField("timer_started_event_attributes"):
            length = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
            found.append(f"timer {length.total_seconds():.10g} started")
        elif event.HasField("timer_canceled_event_attributes"):
            found.append("timer canceled")
    return found


async def test_frozen_time_does_not_count(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    """Frozen for a long time; thawed, it goes on as if nothing had been."""
    handle = await begin(env, fakes)

    async def freeze(request: Any) -> Acted:
        await handle.signal(names.FREEZE)
        return fakes.acted()

    async def thaw(request: Any) -> None:
        if fakes.count(names.RENEW_LEASE) == 3:
            await handle.signal(names.THAW)

    fakes.on[names.ACT] = freeze
    fakes.on[names.RENEW_LEASE] = thaw  # after a third of a lease of 3600 s each
    result = await handle.result()
    await replay(handle)
    assert result.termination_reason == "agent_done"
    assert fakes.count(names.RENEW_LEASE) == 3
    assert fakes.count(names.DECIDE) == 2


async def test_after_a_freeze_the_clock_goes_on_where_it_stood(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    async def thaw(request: Any) -> None:
        await handle.signal(names.THAW)

    fakes.on[names.RENEW_LEASE] = thaw
    handle = await frozen(env, fakes, lease_s=3000)
    await handle.result()
    first, lease, second = (float(mark.split()[1]) for mark in await marks(handle) if mark.endswith("started"))
    assert (first, lease) == (BACKSTOP_S, 1000)
    assert 0 < second < BACKSTOP_S, "what had passed before the freeze stays passed; the freeze does not count"


async def test_an_episode_can_be_frozen_before_it_begins(env: WorkflowEnvironment) -> None:
    fakes = FakeActivities(f"q-{uuid.uuid4().hex[:8]}")
    handle = await begin(env, fakes)
    await handle.signal(names.FREEZE)

    async def thaw(request: Any) -> None:
        assert names.DECIDE not in fakes.log, "it stands still before the first step"
        await handle.signal(names.THAW)

    fakes.on[names.RENEW_LEASE] = thaw
    async with fake_worker(env.client, fakes):
        assert (await handle.result()).termination_reason == "agent_done"
    await replay(handle)
    timers = [mark for mark in await marks(handle) if mark.endswith("started")]
    assert timers == ["timer 1200 started", f"timer {BACKSTOP_S:g} started"], "the clock has not moved"
