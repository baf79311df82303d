"""The BenchmarkBatch workflow on fake activities and the real Temporal server: input, control, stop and cancel.

What the ledger makes of it is tested elsewhere; here it is the order of calls, and that nothing is lost.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.worker import Replayer

from models import attributes, names
from models.batch import BatchResult, Control, Counts, PumpResult
from rollbook.plugin import RollbookPlugin
from tests.doubles.fake_activities import FakeActivities, Gate, fails, fake_worker
from workflows.batch import BenchmarkBatch

Handle = WorkflowHandle[Any, BatchResult]

SPEC: dict[str, Any] = {"task_set": "demo", "policy": {"kind": "noop"}}


@pytest.fixture(scope="module")
async def client(temporal_address: str) -> Client:
    return await Client.connect(temporal_address, plugins=[RollbookPlugin()])


@pytest.fixture
async def fakes(client: Client) -> AsyncIterator[FakeActivities]:
    fakes = FakeActivities(f"q-{uuid.uuid4().hex[:8]}")
    async with fake_worker(client, fakes):
        yield fakes


async def begin(client: Client, fakes: FakeActivities, *inputs: Any, batch_id: str = "") -> Handle:
    return await client.start_workflow(
        names.BATCH,
        args=list(inputs or [SPEC]),
        id=batch_id or f"batch-{uuid.uuid4().hex[:8]}",
        task_queue=fakes.queue,
        result_type=BatchResult,
    )


async def replay(client: Client, handle: Handle) -> int:
    """Replay every run of a batch from its history; returns how many there were."""
    run_id = handle.first_execution_run_id
    runs = 0
    while run_id:
        run = client.get_workflow_handle(handle.id, run_id=run_id)
        history = await run.fetch_history()
        await Replayer(workflows=[BenchmarkBatch], plugins=[RollbookPlugin()]).replay_workflow(history)
        last = history.events[-1].workflow_execution_continued_as_new_event_attributes
        run_id, runs = last.new_execution_run_id, runs + 1
    return runs


async def refusal(handle: Handle) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


async def ends_cancelled(client: Client, handle: Handle) -> None:
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, CancelledError)
    await replay(client, handle)


async def at_least(fakes: FakeActivities, name: str, times: int) -> None:
    """Wait until an activity has begun so often."""
    for _ in range(1000):
        if fakes.count(name) >= times:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} began {fakes.count(name)} times, not {times}")


def controls(fakes: FakeActivities) -> list[Control]:
    return list(fakes.requests[names.SET_CONTROL])


# --- input -------------------------------------------------------------------------------------------------------


async def test_a_batch_from_registration_to_whole(client: Client, fakes: FakeActivities) -> None:
    fakes.pumps = ["continue", "whole"]
    handle = await begin(client, fakes)
    result = await handle.result()
    assert result.state == "complete"
    assert result.counts == fakes.counts
    assert result.next == f"rollbook audit {handle.id}"
    assert fakes.log == [names.REGISTER_BATCH, names.PUMP, names.PUMP]
    registered = fakes.requests[names.REGISTER_BATCH][0]
    assert (registered.batch_id, registered.launch_id) == (handle.id, handle.first_execution_run_id)
    found = {pair.key.name: pair.value for pair in (await handle.describe()).typed_search_attributes}
    assert (found[attributes.BATCH], found[attributes.POLICY]) == (handle.id, "noop")
    assert await handle.query("counts", result_type=Counts) == fakes.counts
    await replay(client, handle)


async def test_integers_as_floats_are_integers(client: Client, fakes: FakeActivities) -> None:
    await (await begin(client, fakes, SPEC | {"samples": 4.0, "limits": {"max_steps": 7.0}})).result()
    spec = fakes.requests[names.REGISTER_BATCH][0].spec
    assert (spec.samples, spec.limits.max_steps) == (4, 7)


BAD_INPUTS: list[tuple[list[Any], str]] = [
    ([SPEC | {"sample": 3}], "sample: unknown key"),
    ([SPEC | {"samples": "3"}], "samples: "),
    ([SPEC | {"samples": 2.5}], "samples: "),
    ([SPEC | {"limits": {"max_steps": 0}}], "limits.max_steps: "),
    ([SPEC | {"policy": {"kind": "oracle"}}], "policy.kind: "),
    ([{"policy": {"kind": "noop"}}], "task_set: required"),
    ([{}], "policy: required; task_set: required"),
    ([[SPEC]], "the input must be one JSON object"),
    (["demo"], "the input must be one JSON object"),
    ([None], "the input must be one JSON object"),
    ([SPEC, SPEC], "the input must be one JSON object, the batch spec (given: 2 inputs)"),
    ([SPEC, None], "the input must be one JSON object, the batch spec (given: 2 inputs)"),
]


@pytest.mark.parametrize(("inputs", "message"), BAD_INPUTS)
async def test_bad_input_fails_at_once_and_names_the_field(
    client: Client, fakes: FakeActivities, inputs: list[Any], message: str
) -> None:
    handle = await begin(client, fakes, *inputs)
    error = await refusal(handle)
    assert error.type == names.INVALID_INPUT
    assert error.non_retryable
    assert error.message.startswith(message)
    assert fakes.log == []
    await replay(client, handle)


async def test_no_input_is_refused(client: Client, fakes: FakeActivities) -> None:
    handle: Handle = await client.start_workflow(names.BATCH, id=f"none-{uuid.uuid4().hex[:8]}", task_queue=fakes.queue)
    error = await refusal(handle)
    assert (error.type, "given: 0 inputs" in error.message) == (names.INVALID_INPUT, True)


@pytest.mark.parametrize("name", ["a/b", "a b", "-a", "ä"])
async def test_a_workflow_id_that_is_no_batch_id_is_refused(client: Client, fakes: FakeActivities, name: str) -> None:
    error = await refusal(await begin(client, fakes, batch_id=f"{name}{uuid.uuid4().hex[:8]}"))
    assert error.type == names.INVALID_INPUT
    assert error.message.startswith("workflow id: ")
    assert fakes.log == []


async def test_what_the_ledger_refuses_is_refused_in_its_words(client: Client, fakes: FakeActivities) -> None:
    fakes.on[names.REGISTER_BATCH] = fails(names.INVALID_INPUT, "limits.max_steps: 15 -> 3")
    error = await refusal(await begin(client, fakes))
    assert (error.type, error.message) == (names.INVALID_INPUT, "limits.max_steps: 15 -> 3")
    assert names.PUMP not in fakes.log
    assert names.CLOSE_BATCH not in fakes.log


async def test_a_relaunch_of_a_whole_batch_does_nothing(client: Client, fakes: FakeActivities) -> None:
    fakes.registered |= {"planned": 2, "added": 0, "final": 2}
    handle = await begin(client, fakes)
    assert (await handle.result()).state == "already complete"
    assert fakes.log == [names.REGISTER_BATCH, names.PUMP], "one look, for the counts"


async def test_a_ledger_that_is_away_for_a_while_is_waited_for(client: Client, fakes: FakeActivities) -> None:
    async def away(request: Any) -> PumpResult:
        if fakes.count(names.PUMP) < 3:
            raise ConnectionError("no ledger")
        return fakes.pumped()

    fakes.on[names.PUMP] = away
    assert (await (await begin(client, fakes)).result()).state == "complete"


# --- control -----------------------------------------------------------------------------------------------------


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


async def details(handle: Handle) -> str:
    """What the Temporal UI shows of a running workflow."""
    metadata: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


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


# --- cancel ------------------------------------------------------------------------------------------------------


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
