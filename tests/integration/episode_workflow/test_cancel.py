"""A cancel at every point of an episode: on record once, the desktop stopped once, no further attempt."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from models import names
from models.episode import Claimed, Evaluated
from models.outcome import Infra
from tests.doubles.fake_activities import FakeActivities, Gate, fails
from tests.support.episodes import (
    CLICK,
    END,
    begin,
    details,
    ends_cancelled,
    frozen,
)

ANSWERS: dict[str, Callable[[FakeActivities], Any]] = {
    names.CLAIM: lambda fakes: fakes.claimed(1),
    names.START_SANDBOX: lambda fakes: fakes.desktop(fakes.requests[names.START_SANDBOX][0]),
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
        gate.opened.set()  # a claim is never cut short: its effect on the ledger would be unknown
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
    # the attempt that was due ends as cancelled without having begun: no row is left that claims to run
    assert fakes.count(names.CLAIM) == fakes.count(names.FINALIZE) == 2
    assert fakes.outcome.facts.infrastructure_failure_reason is Infra.CANCELLED
    assert fakes.count(names.START_SANDBOX) == 1


async def test_a_cancel_while_a_desktop_cannot_be_stopped_counts(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    async def refuses(_: Any) -> None:
        await handle.cancel()
        await asyncio.sleep(0.3)
        raise ApplicationError("the engine is away", type=Infra.ROLLOUT_ERROR, non_retryable=True)

    fakes.on[names.STOP_SANDBOX] = refuses
    fakes.on[names.ACT] = fails(Infra.SANDBOX_LOST)
    handle = await begin(env, fakes)
    await ends_cancelled(handle)
    assert fakes.count(names.START_SANDBOX) == 1


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
