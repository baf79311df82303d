"""Batches on fake activities and the real Temporal server, for the tests of the BenchmarkBatch workflow."""

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.worker import Replayer

from models import names
from models.batch import BatchResult, Control
from rollbook.temporal.plugin import RollbookPlugin
from tests.doubles.fake_activities import FakeActivities
from workflows.batch import BenchmarkBatch

Handle = WorkflowHandle[Any, BatchResult]

SPEC: dict[str, Any] = {"task_set": "demo", "policy": {"kind": "noop"}}


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


async def details(handle: Handle) -> str:
    """Details of a workflow in the Temporal UI, also after its end."""
    metadata: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details
