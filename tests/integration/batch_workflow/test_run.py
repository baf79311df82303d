"""BenchmarkBatch on fake activities and the real Temporal server: its input and its course.

What the ledger makes of it is tested elsewhere; here it is the order of calls.
"""

import uuid
from typing import Any

import pytest
from temporalio.client import Client

from models import attributes, names
from models.batch import Counts, PumpResult
from tests.doubles.fake_activities import FakeActivities, fails
from tests.support.batches import SPEC, Handle, begin, details, refusal, replay


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
    assert (await details(handle)).startswith(f"**{handle.id}**: complete")
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
    assert await details(handle) == f"**{handle.id}**: refused\n\n{error.message}"
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


async def test_a_result_that_cannot_be_read_is_asked_for_again(client: Client, fakes: FakeActivities) -> None:
    """`temporal activity complete` gives an activity any result; the next call returns its own."""
    by_hand = iter([{"state": "done by hand"}, None])

    async def pump(request: Any) -> Any:
        return next(by_hand, fakes.pumped())

    fakes.on[names.PUMP] = pump
    handle = await begin(client, fakes)
    assert (await handle.result()).state == "complete"
    assert fakes.count(names.PUMP) == 3
    await replay(client, handle)


async def test_a_result_that_is_never_readable_ends_the_batch_with_words(client: Client, fakes: FakeActivities) -> None:
    async def register(request: Any) -> Any:
        return {"batch_id": 7}

    fakes.on[names.REGISTER_BATCH] = register
    error = await refusal(await begin(client, fakes))
    assert error.message.startswith("register_batch: its result cannot be read: ")
