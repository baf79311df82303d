"""A cancel at every point of a batch: the batch is closed once, and the workflow ends as cancelled."""

import asyncio

import pytest
from temporalio.client import Client

from models import names
from tests.doubles.fake_activities import FakeActivities, Gate, fails
from tests.support.batches import at_least, begin, details, ends_cancelled


@pytest.mark.parametrize("stubborn", [False, True], ids=["heeds-the-cancel", "answers-all-the-same"])
@pytest.mark.parametrize("activity", [names.REGISTER_BATCH, names.PUMP])
async def test_a_cancel_closes_the_batch_wherever_it_is(
    client: Client, fakes: FakeActivities, activity: str, stubborn: bool
) -> None:
    fakes.pumps = ["continue"]
    answer = fakes.pumped if activity == names.PUMP else lambda: {"batch_id": "b", **fakes.registered}
    gate = fakes.on[activity] = Gate(answer, stubborn=stubborn)
    handle = await begin(client, fakes)
    await gate.entered.wait()
    await handle.cancel()
    await ends_cancelled(client, handle)
    assert fakes.count(names.CLOSE_BATCH) == 1
    assert fakes.requests[names.CLOSE_BATCH][0].batch_id == handle.id
    assert fakes.log[-1] == names.CLOSE_BATCH
    assert (await details(handle)).startswith(f"**{handle.id}**: cancelled")


async def test_a_second_cancel_does_not_interrupt_the_closing(client: Client, fakes: FakeActivities) -> None:
    pump = fakes.on[names.PUMP] = Gate(fakes.pumped)
    close = fakes.on[names.CLOSE_BATCH] = Gate(lambda: fakes.counts)
    handle = await begin(client, fakes)
    await pump.entered.wait()
    await handle.cancel()
    await close.entered.wait()
    await handle.cancel()
    await asyncio.sleep(0.2)
    close.opened.set()
    await ends_cancelled(client, handle)
    assert not close.cancelled.is_set()
    assert fakes.count(names.CLOSE_BATCH) == 1


async def test_a_cancel_between_two_runs_is_not_lost(client: Client, fakes: FakeActivities) -> None:
    fakes.registered |= {"slices_per_run": 1}
    fakes.pumps = ["continue"]
    handle = await begin(client, fakes)
    await at_least(fakes, names.REGISTER_BATCH, 3)
    await client.get_workflow_handle(handle.id).cancel()
    await ends_cancelled(client, handle)
    assert fakes.count(names.CLOSE_BATCH) == 1


async def test_a_cancel_before_registration_finds_nothing_to_close(client: Client, fakes: FakeActivities) -> None:
    gate = fakes.on[names.REGISTER_BATCH] = Gate(lambda: None)
    fakes.on[names.CLOSE_BATCH] = fails(names.INVALID_INPUT, "batch_id: no such batch")
    handle = await begin(client, fakes)
    await gate.entered.wait()
    await handle.cancel()
    await ends_cancelled(client, handle)


async def test_a_paused_batch_can_be_cancelled(client: Client, fakes: FakeActivities) -> None:
    gate = fakes.on[names.PUMP] = Gate(fakes.pumped)
    handle = await begin(client, fakes)
    await gate.entered.wait()
    await handle.signal(names.PAUSE)
    await handle.cancel()
    await ends_cancelled(client, handle)
    assert fakes.log.count(names.CLOSE_BATCH) == 1
