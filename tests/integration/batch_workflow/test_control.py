"""Control of a batch by signal and update: nothing is lost, nothing wrong is written."""

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from models import names
from models.batch import PumpResult
from tests.doubles.fake_activities import FakeActivities, Gate, fails, fake_worker
from tests.support.batches import at_least, begin, controls, details, replay


async def test_control_before_the_first_workflow_task_comes_before_the_pump(client: Client) -> None:
    fakes = FakeActivities(f"q-{uuid.uuid4().hex[:8]}")
    handle = await begin(client, fakes)
    await handle.signal(names.PAUSE, {"freeze": True, "reason": "lunch"})
    await handle.signal(names.SET_CONCURRENCY, 7.0)
    await handle.signal(names.RESUME)
    async with fake_worker(client, fakes):
        await handle.result()
    assert fakes.log == [names.REGISTER_BATCH, *([names.SET_CONTROL] * 3), names.PUMP]
    pause, concurrency, resume = controls(fakes)
    assert (pause.verb, pause.freeze, pause.reason, pause.batch_id) == ("pause", True, "lunch", handle.id)
    assert (concurrency.verb, concurrency.concurrency) == ("set_concurrency", 7)
    assert resume.verb == "resume"
    await replay(client, handle)


async def test_no_signal_is_lost_around_continue_as_new(client: Client, fakes: FakeActivities) -> None:
    """Sixty signals while the batch continues as new after every pump: each is written once, in order."""
    fakes.registered |= {"slices_per_run": 1}
    sent = asyncio.Event()

    async def busy(request: Any) -> PumpResult:
        await asyncio.sleep(0.02)
        return PumpResult(state="whole" if sent.is_set() else "continue", counts=fakes.counts)

    fakes.on[names.PUMP] = busy
    handle = await begin(client, fakes)
    current = client.get_workflow_handle(handle.id)  # without a run id: whichever run is the current one
    for number in range(1, 61):
        await current.signal(names.SET_CONCURRENCY, {"concurrency": number})
        if number % 12 == 0:  # while signals keep coming, the batch does not continue as new
            await at_least(fakes, names.REGISTER_BATCH, fakes.count(names.REGISTER_BATCH) + 1)
    sent.set()
    assert (await handle.result()).state == "complete"
    assert [change.concurrency for change in controls(fakes)] == list(range(1, 61))
    assert {request.launch_id for request in fakes.requests[names.REGISTER_BATCH]} == {handle.first_execution_run_id}
    assert await replay(client, handle) == fakes.count(names.REGISTER_BATCH) > 3


async def test_updates_around_continue_as_new_are_answered(client: Client, fakes: FakeActivities) -> None:
    fakes.registered |= {"slices_per_run": 1}
    sent = asyncio.Event()

    async def busy(request: Any) -> PumpResult:
        await asyncio.sleep(0.02)
        return PumpResult(state="whole" if sent.is_set() else "continue", counts=fakes.counts)

    fakes.on[names.PUMP] = busy
    handle = await begin(client, fakes)
    for number in range(1, 13):
        answer = await client.get_workflow_handle(handle.id).execute_update(
            "control", {"verb": "set_concurrency", "concurrency": number}
        )
        assert answer == {"verb": "set_concurrency", "written": True}
        assert controls(fakes)[-1].concurrency == number, "it is written when it is acknowledged"
    sent.set()
    await handle.result()
    assert [change.concurrency for change in controls(fakes)] == list(range(1, 13))


async def test_control_during_a_pump_is_written_while_it_runs(client: Client, fakes: FakeActivities) -> None:
    gate = fakes.on[names.PUMP] = Gate(fakes.pumped)
    handle = await begin(client, fakes)
    await gate.entered.wait()
    await handle.execute_update("control", {"verb": "pause", "reason": "look"})
    assert not gate.opened.is_set()
    assert [change.verb for change in controls(fakes)] == ["pause"]
    gate.opened.set()
    await handle.result()


async def test_a_control_that_is_being_written_is_finished_before_the_batch_ends(
    client: Client, fakes: FakeActivities
) -> None:
    gate = fakes.on[names.SET_CONTROL] = Gate(lambda: None)
    pump = fakes.on[names.PUMP] = Gate(fakes.pumped)
    handle = await begin(client, fakes)
    await pump.entered.wait()
    await handle.signal(names.STOP)
    await gate.entered.wait()
    pump.opened.set()
    await asyncio.sleep(0.2)
    assert (await handle.describe()).close_time is None
    gate.opened.set()
    assert (await handle.result()).state == "complete"
    await replay(client, handle)


REFUSED_CONTROLS: list[tuple[dict[str, Any], str]] = [
    ({"verb": "halt"}, "verb: must be one of"),
    ({}, "verb: must be one of"),
    ({"verb": "set_concurrency"}, "concurrency: required"),
    ({"verb": "set_concurrency", "concurrency": 0}, "concurrency: "),
    ({"verb": "set_concurrency", "concurrency": 2.5}, "concurrency: "),
    ({"verb": "set_concurrency", "concurrency": True}, "concurrency: "),
    ({"verb": "pause", "freez": True}, "freez: unknown key"),
    ({"verb": "pause", "freeze": "yes"}, "freeze: "),
    ({"verb": "stop", "concurrency": 3}, "concurrency: unknown key"),
]


@pytest.mark.parametrize(("request_", "message"), REFUSED_CONTROLS)
async def test_a_wrong_update_is_refused_and_leaves_no_trace(
    client: Client, fakes: FakeActivities, request_: dict[str, Any], message: str
) -> None:
    gate = fakes.on[names.PUMP] = Gate(fakes.pumped)
    handle = await begin(client, fakes)
    await gate.entered.wait()
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await handle.execute_update("control", request_)
    assert message in str(caught.value.cause)
    gate.opened.set()
    await handle.result()
    assert controls(fakes) == []
    assert not [
        event async for event in handle.fetch_history_events() if "update" in str(event.ListFields()[-1][0].name)
    ]


@pytest.mark.parametrize(
    ("signal", "argument", "message"),
    [
        (names.PAUSE, {"freez": True}, "refused signal pause: freez: unknown key"),
        (names.SET_CONCURRENCY, "eight", "refused signal set_concurrency: concurrency: "),
        (names.SET_CONCURRENCY, None, "refused signal set_concurrency: concurrency: "),
        (names.STOP, [1], "refused signal stop: "),
    ],
)
async def test_a_wrong_signal_is_shown_and_changes_nothing(
    client: Client, fakes: FakeActivities, signal: str, argument: Any, message: str
) -> None:
    gate = fakes.on[names.PUMP] = Gate(fakes.pumped)
    handle = await begin(client, fakes)
    await gate.entered.wait()
    await handle.signal(signal, argument)
    assert message in await details(handle)
    gate.opened.set()
    assert (await handle.result()).state == "complete"
    assert controls(fakes) == []


async def test_a_control_that_the_ledger_refuses_does_not_fail_the_batch(client: Client, fakes: FakeActivities) -> None:
    gate = fakes.on[names.PUMP] = Gate(fakes.pumped)
    fakes.on[names.SET_CONTROL] = fails(names.INVALID_INPUT, "the ledger says no")
    handle = await begin(client, fakes)
    await gate.entered.wait()
    await handle.signal(names.PAUSE)
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("control", {"verb": "resume"})
    assert "the ledger says no" in await details(handle)
    gate.opened.set()
    assert (await handle.result()).state == "complete"


@pytest.mark.parametrize(
    ("signal", "argument", "expected"),
    [
        (names.PAUSE, None, {"verb": "pause", "freeze": False}),
        (names.PAUSE, "maintenance", {"verb": "pause", "reason": "maintenance"}),
        (names.PAUSE, {}, {"verb": "pause"}),
        (names.RESUME, {"reason": "done"}, {"verb": "resume", "reason": "done"}),
        (names.STOP, "enough", {"verb": "stop", "reason": "enough"}),
        (names.SET_CONCURRENCY, 5, {"verb": "set_concurrency", "concurrency": 5}),
        (names.SET_CONCURRENCY, {"concurrency": 5.0}, {"verb": "set_concurrency", "concurrency": 5}),
    ],
)
async def test_signals_as_people_send_them(
    client: Client, fakes: FakeActivities, signal: str, argument: Any, expected: dict[str, Any]
) -> None:
    gate = fakes.on[names.PUMP] = Gate(fakes.pumped)
    handle = await begin(client, fakes)
    await gate.entered.wait()
    await handle.signal(signal, *([] if argument is None else [argument]))
    await details(handle)  # an answered query: the signal has been handled
    gate.opened.set()
    await handle.result()
    [change] = controls(fakes)
    assert expected.items() <= change.model_dump().items()


async def test_stop_ends_the_batch_and_says_how_to_go_on(client: Client, fakes: FakeActivities) -> None:
    async def pump(request: Any) -> PumpResult:
        await asyncio.sleep(0.05)
        stopping = any(change.verb == "stop" for change in controls(fakes))
        return PumpResult(state="stopped" if stopping else "continue", counts=fakes.counts)

    fakes.on[names.PUMP] = pump
    handle = await begin(client, fakes)
    await handle.signal(names.STOP)
    result = await handle.result()
    assert (result.state, result.next) == ("stopped", "relaunch the same spec to resume")
    assert names.CLOSE_BATCH not in fakes.log
