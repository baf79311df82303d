"""The Episode workflow on fake activities: what it calls, in which order, and what it tells the ledger.

Every episode here is replayed from its history at the end: the workflow is deterministic in all of these stories.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from models import attributes, names
from models.episode import Acted, Claimed, Decision, EpisodeResult, EpisodeStart, Evaluated
from models.outcome import Infra
from rollbook.plugin import RollbookPlugin
from tests.doubles.fake_activities import FakeActivities, Gate, fails, fake_worker
from tests.workflowkit import time_skipping
from workflows.episode import Episode

Handle = WorkflowHandle[Any, EpisodeResult]

BEGIN = [names.CLAIM, names.START_SANDBOX, names.PREPARE_TASK, names.OBSERVE]
SCORE = [names.RUN_POSTCONFIG, names.EVALUATE]
END = [names.FINALIZE, names.STOP_SANDBOX]

CLICK = Decision(action_count=1, summary="click")


@pytest.fixture(scope="module")
async def env() -> AsyncIterator[WorkflowEnvironment]:
    async with time_skipping() as env:
        yield env


@pytest.fixture
async def fakes(env: WorkflowEnvironment) -> AsyncIterator[FakeActivities]:
    fakes = FakeActivities(f"q-{uuid.uuid4().hex[:8]}")
    async with fake_worker(env.client, fakes):
        yield fakes


async def begin(env: WorkflowEnvironment, fakes: FakeActivities) -> Handle:
    key = f"b/os/t/{uuid.uuid4().hex[:8]}"
    return await env.client.start_workflow(
        names.EPISODE, EpisodeStart(rollout_key=key), id=key, task_queue=fakes.queue, result_type=EpisodeResult
    )


async def replay(handle: Handle) -> None:
    await Replayer(workflows=[Episode], plugins=[RollbookPlugin()]).replay_workflow(await handle.fetch_history())


async def play(env: WorkflowEnvironment, fakes: FakeActivities) -> EpisodeResult:
    """Start an episode, wait for its end, and replay it."""
    handle = await begin(env, fakes)
    result = await handle.result()
    await replay(handle)
    return result


async def ends_cancelled(handle: Handle) -> None:
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, CancelledError)
    await replay(handle)


# --- the story of a quiet day ------------------------------------------------------------------------------------


async def test_an_episode_from_claim_to_admission(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    result = await play(env, fakes)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, names.DECIDE, *SCORE, *END]
    assert fakes.activity_ids == [
        "claim-1",
        "a1-start-sandbox",
        "a1-prepare-task",
        "a1-observe",
        "a1-s001-decide",
        "a1-s001-act",
        "a1-s002-decide",
        "a1-run-postconfig",
        "a1-evaluate",
        "a1-finalize",
        "a1-stop-sandbox",
    ]
    assert result == EpisodeResult(
        rollout_key=result.rollout_key,
        status="final",
        attempts=1,
        termination_reason="agent_done",
        admitted=True,
        score=1.0,
        reward=1.0,
    )
    assert fakes.requests[names.EVALUATE][0].terminal_action == "DONE"
    assert fakes.outcome.steps == 2


async def test_fail_is_an_answer(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.decisions = [Decision(terminal_action="FAIL")]
    fakes.score = 0.0
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted, result.score) == ("agent_fail", True, 0.0)
    assert names.ACT not in fakes.log


async def test_actions_before_a_terminal_one_are_run(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.decisions = [Decision(action_count=2, terminal_action="DONE")]
    await play(env, fakes)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, *SCORE, *END]


async def test_the_horizon_is_the_runners(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.decisions = [CLICK]
    fakes.score = 0.25
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted, result.score) == ("max_steps", True, 0.25)
    # the last action is run, and what it did is what gets evaluated
    assert fakes.log == [*BEGIN, *([names.DECIDE, names.ACT] * 5), *SCORE, *END]
    assert fakes.outcome.facts.horizon_reached
    assert fakes.outcome.steps == 5


async def test_a_terminal_action_in_the_last_step_is_no_horizon(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    fakes.decisions = [*([CLICK] * 4), Decision(terminal_action="DONE")]
    result = await play(env, fakes)
    assert result.termination_reason == "agent_done"
    assert not fakes.outcome.facts.horizon_reached


async def test_output_that_stays_unreadable_is_scored(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.decisions = [CLICK, Decision(policy_stop_reason="model_response_unparseable")]
    fakes.score = 0.0
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted) == ("model_response_unparseable", True)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, names.DECIDE, *SCORE, *END]


async def test_a_step_without_an_action_looks_again(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    """Upstream does not (contract §8 b): its next decision sees a stale screen."""
    fakes.decisions = [Decision(action_count=0), Decision(terminal_action="DONE")]
    changed = Acted.model_validate(
        {"observation": {"screenshot": {"sha256": "f" * 64, "size_bytes": 2, "media_type": "x"}}}
    )

    async def look(request: Any) -> Acted:
        return changed

    fakes.on[names.ACT] = look
    await play(env, fakes)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, names.DECIDE, *SCORE, *END]
    first, second = fakes.requests[names.DECIDE]
    assert second.observation == changed.observation != first.observation


@pytest.mark.parametrize(("said", "status"), [("final", "already final"), ("stopping", "stopping")])
async def test_nothing_is_done_where_nothing_is_due(
    env: WorkflowEnvironment, fakes: FakeActivities, said: str, status: str
) -> None:
    async def nothing(request: Any) -> Claimed:
        return Claimed.model_validate({"status": said})

    fakes.on[names.CLAIM] = nothing
    result = await play(env, fakes)
    assert (result.status, result.attempts) == (status, 0)
    assert fakes.log == [names.CLAIM]


async def test_the_temporal_ui_can_filter_by_outcome(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    handle = await begin(env, fakes)
    await handle.result()
    found = {pair.key.name: pair.value for pair in (await handle.describe()).typed_search_attributes}
    assert found[attributes.TERMINATION] == "agent_done"
    assert found[attributes.OUTCOME] == "admitted"
    assert found[attributes.ADMITTED] is True
    assert found[attributes.SCORE] == 1.0
    assert (found[attributes.ATTEMPT], found[attributes.STEPS]) == (1, 2)


# --- failures ----------------------------------------------------------------------------------------------------

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
    assert result.score == (1.0 if evaluated else None), "a score that was found is kept, though it does not count"
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
    first = [*BEGIN, names.DECIDE, names.ACT, *END]
    assert fakes.log == [*first, *BEGIN, names.DECIDE, names.ACT, names.DECIDE, *SCORE, *END]
    assert [one.sandbox_key for one in (call.desk for call in fakes.requests[names.ACT])] == ["k1", "k2"]
    assert [attempt.attempt_index for attempt in fakes.requests[names.STOP_SANDBOX]] == [1, 2]


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
    assert (result.attempts, result.termination_reason, result.score) == (1, "action_timeout", 1.0)
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
    fakes.on[names.START_SANDBOX] = hesitant(names.START_SANDBOX, fakes.desk)
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


# --- the fence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activity", [names.CLAIM, *BEGIN[1:], names.DECIDE, names.ACT, *SCORE, names.FINALIZE])
async def test_a_run_that_was_overtaken_cleans_up_and_says_nothing(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str
) -> None:
    fakes.on[activity] = fakes.on[names.FINALIZE] = fails(names.FENCED)
    result = await play(env, fakes)
    assert (result.status, result.termination_reason, result.admitted) == ("superseded", None, False)
    claimed = activity != names.CLAIM
    assert fakes.count(names.STOP_SANDBOX) == int(claimed)
    assert fakes.count(names.CLAIM) == 1
    assert (names.EVALUATE in fakes.log) is (activity in (names.EVALUATE, names.FINALIZE))


# --- the deadline ------------------------------------------------------------------------------------------------


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
    assert fakes.log[-4:] == [*SCORE, *END]
    assert result.score == 1.0, "the score is kept, though it does not count"


async def test_what_was_done_when_the_deadline_came_counts(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    """The action had happened before the cancel reached it: the desktop that it left is what gets evaluated."""
    in_a_hurry(fakes, 4)
    gate = fakes.on[names.ACT] = Gate(fakes.acted, stubborn=True)
    result = await play(env, fakes)
    assert gate.cancelled.is_set()
    assert (result.termination_reason, result.score) == ("timeout", 1.0)
    assert fakes.log[-5:] == [names.ACT, *SCORE, *END]


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


# --- cancel ------------------------------------------------------------------------------------------------------

ANSWERS: dict[str, Callable[[FakeActivities], Any]] = {
    names.CLAIM: lambda fakes: fakes.claimed(1),
    names.START_SANDBOX: lambda fakes: fakes.desk(fakes.requests[names.START_SANDBOX][0]),
    names.PREPARE_TASK: lambda fakes: None,
    names.OBSERVE: lambda fakes: fakes.seen(),
    names.DECIDE: lambda fakes: CLICK,
    names.ACT: lambda fakes: fakes.acted(),
    names.RUN_POSTCONFIG: lambda fakes: None,
    names.EVALUATE: lambda fakes: Evaluated(completed=True, score=1.0),
}


@pytest.mark.parametrize("stubborn", [False, True], ids=["heeds-the-cancel", "answers-all-the-same"])
@pytest.mark.parametrize("activity", ANSWERS)
async def test_a_cancel_ends_the_episode_wherever_it_is(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str, stubborn: bool
) -> None:
    """The attempt is on record as cancelled, its desktop is stopped, and no other attempt begins."""
    gate = fakes.on[activity] = Gate(lambda: ANSWERS[activity](fakes), stubborn=stubborn)
    handle = await begin(env, fakes)
    await gate.entered.wait()
    await handle.cancel()
    if activity == names.CLAIM:
        gate.opened.set()  # a claim is never cut short: nobody would know what it left in the ledger
    await ends_cancelled(handle)
    assert fakes.outcome.facts.infrastructure_failure_reason is Infra.CANCELLED
    assert fakes.count(names.FINALIZE) == fakes.count(names.STOP_SANDBOX) == fakes.count(names.CLAIM) == 1
    assert fakes.log[-2:] == END


@pytest.mark.parametrize("activity", END)
async def test_a_cancel_during_cleanup_does_not_cancel_the_cleanup(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str
) -> None:
    answer = {names.FINALIZE: lambda: fakes.finalized(fakes.outcome), names.STOP_SANDBOX: lambda: None}[activity]
    gate = fakes.on[activity] = Gate(answer)
    handle = await begin(env, fakes)
    await gate.entered.wait()
    await handle.cancel()
    await asyncio.sleep(0.3)
    gate.opened.set()
    await ends_cancelled(handle)
    assert not gate.cancelled.is_set()
    assert fakes.outcome.facts.infrastructure_failure_reason is None
    assert fakes.count(names.FINALIZE) == fakes.count(names.STOP_SANDBOX) == 1


async def test_a_cancel_during_cleanup_prevents_the_next_attempt(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    gate = fakes.on[names.STOP_SANDBOX] = Gate(lambda: None)
    fakes.on[names.ACT] = fails(Infra.SANDBOX_LOST)
    handle = await begin(env, fakes)
    await gate.entered.wait()
    await handle.cancel()
    gate.opened.set()
    await ends_cancelled(handle)
    assert fakes.count(names.CLAIM) == 1


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_cancel_while_a_frozen_episode_renews_its_lease(
    env: WorkflowEnvironment, fakes: FakeActivities, stubborn: bool
) -> None:
    gate = fakes.on[names.RENEW_LEASE] = Gate(lambda: None, stubborn=stubborn)
    handle = await frozen(env, fakes, lease_s=0.3)
    await gate.entered.wait()
    await handle.cancel()
    await ends_cancelled(handle)
    assert fakes.outcome.facts.infrastructure_failure_reason is Infra.CANCELLED
    assert fakes.log[-2:] == END


async def test_a_cancel_while_a_frozen_episode_waits(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    handle = await frozen(env, fakes, lease_s=3600)
    for _ in range(500):
        if "frozen" in await details(handle):
            break
        await asyncio.sleep(0.02)
    await handle.cancel()
    await ends_cancelled(handle)
    assert names.RENEW_LEASE not in fakes.log
    assert fakes.log[-2:] == END


async def frozen(env: WorkflowEnvironment, fakes: FakeActivities, lease_s: float) -> Handle:
    """An episode that was frozen while it acted."""
    fakes.plan = fakes.plan.model_copy(update={"lease_s": lease_s})

    async def freeze(request: Any) -> Acted:
        await handle.signal(names.FREEZE)
        return fakes.acted()

    fakes.on[names.ACT] = freeze
    handle = await begin(env, fakes)
    return handle


async def details(handle: Handle) -> str:
    """What the Temporal UI shows of a running workflow."""
    metadata: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


async def test_a_cancel_before_anything_leaves_nothing(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    async def stopping(request: Any) -> Claimed:
        await handle.cancel()
        return Claimed(status="stopping")

    fakes.on[names.CLAIM] = stopping
    handle = await begin(env, fakes)
    await ends_cancelled(handle)
    assert fakes.log == [names.CLAIM]


async def test_the_reason_for_a_cancel_is_on_record(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    gate = fakes.on[names.ACT] = Gate(fakes.acted)
    handle = await begin(env, fakes)
    await gate.entered.wait()
    await handle.cancel()
    await ends_cancelled(handle)
    assert fakes.outcome.detail
