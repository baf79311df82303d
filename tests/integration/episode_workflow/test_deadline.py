"""The deadline of an episode, and how freezing stops it."""

import uuid
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from models import names
from models.episode import Acted
from models.outcome import Infra
from tests.doubles.fake_activities import FakeActivities, Gate, fake_worker
from tests.support.episodes import CLOSE, END, SCORE, Handle, begin, frozen, play, replay


def in_a_hurry(fakes: FakeActivities, deadline_s: float) -> None:
    """A deadline in real time: the test server's clock does not skip while an activity runs."""
    fakes.plan = fakes.plan.model_copy(update={"deadline_s": deadline_s})


@pytest.mark.parametrize("activity", [names.DECIDE, names.ACT])
async def test_the_deadline_ends_the_loop_and_evaluation_follows(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str
) -> None:
    in_a_hurry(fakes, 4)
    gate = fakes.on[activity] = Gate(fakes.acted)
    result = await play(env, fakes)
    assert gate.cancelled.is_set(), "nothing acts on the desktop while it is evaluated"
    assert (result.termination_reason, result.admitted, result.attempts) == ("timeout", False, 1)
    assert fakes.log[-5:] == [*SCORE, *CLOSE]
    assert result.score == 1.0, "the score is kept, though it does not count"


async def test_what_was_done_when_the_deadline_came_counts(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    """The action had happened before the cancel reached it: the desktop that it left is what gets evaluated."""
    in_a_hurry(fakes, 4)
    gate = fakes.on[names.ACT] = Gate(fakes.acted, stubborn=True)
    result = await play(env, fakes)
    assert gate.cancelled.is_set()
    assert (result.termination_reason, result.score) == ("timeout", 1.0)
    assert fakes.log[-6:] == [names.ACT, *SCORE, *CLOSE]


async def test_a_failure_after_the_deadline_earns_no_new_attempt(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    """The cancel of the deadline ends a model call, or its worker is dead: either way the time was up before."""

    def fails_late() -> None:
        raise ApplicationError("interrupted", type=Infra.MODEL_CALL_FAILED, non_retryable=True)

    in_a_hurry(fakes, 2)
    fakes.on[names.DECIDE] = Gate(fails_late, stubborn=True)
    result = await play(env, fakes)
    assert (result.termination_reason, result.attempts) == ("timeout", 1)


@pytest.mark.parametrize("activity", [names.PREPARE_TASK, names.OBSERVE])
async def test_a_deadline_before_the_first_look_leaves_nothing_to_evaluate(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str
) -> None:
    in_a_hurry(fakes, 0.5)
    fakes.on[activity] = Gate(lambda: None)
    result = await play(env, fakes)
    assert (result.termination_reason, result.score) == ("timeout", None)
    assert names.EVALUATE not in fakes.log
    assert fakes.log[-2:] == END


async def test_neither_waiting_for_a_desktop_nor_evaluation_is_on_the_clock(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    handle = await begin(env, fakes)
    await handle.result()
    story = await marks(handle)
    began, ended = story.index("timer 600 started"), story.index("timer canceled")
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
            found.append(f"timer {length.total_seconds():g} started")
        elif event.HasField("timer_canceled_event_attributes"):
            found.append("timer canceled")
    return found


async def test_frozen_time_does_not_count(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    """Frozen for longer than the deadline; thawed, it goes on as if nothing had been."""
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
    assert (first, lease) == (600, 1000)
    assert 0 < second < 600, "what had passed before the freeze stays passed; the 1000 s of the freeze do not count"


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
    assert timers == ["timer 1200 started", "timer 600 started"], "the clock has not moved"
