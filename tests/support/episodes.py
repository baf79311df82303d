"""Episodes on fake activities and a time-skipping server, for the tests of the Episode workflow.

Every episode is replayed from its history at its end: the workflow is deterministic in all of these cases.
"""

import sysconfig
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import CancelledError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from models import names
from models.attributes import SEARCH_ATTRIBUTES
from models.episode import Acted, Decision, EpisodeResult, EpisodeStart
from rollbook.temporal.plugin import RollbookPlugin
from tests.doubles.fake_activities import FakeActivities
from workflows.episode import Episode

Handle = WorkflowHandle[Any, EpisodeResult]

TEST_SERVER = Path(sysconfig.get_path("scripts")) / "temporal-test-server"

BEGIN = [names.CLAIM, names.START_SANDBOX, names.PREPARE_TASK, names.OBSERVE]
SCORE = [names.RUN_POSTCONFIG, names.EVALUATE]
END = [names.FINALIZE, names.STOP_SANDBOX]
CLOSE = [names.EXAMINE_DESKTOP, *END]
"""The end of an attempt that had a desktop and was not cancelled."""

CLICK = Decision(action_count=1, summary="click")


@asynccontextmanager
async def time_skipping() -> AsyncIterator[WorkflowEnvironment]:
    """The server and a client with our plugin, search attributes registered."""
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(TEST_SERVER), plugins=[RollbookPlugin()]
    ) as env:
        kinds = {
            name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
            for name, kind in SEARCH_ATTRIBUTES.items()
        }
        await env.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=env.client.namespace, search_attributes=kinds)
        )
        yield env


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
    """Details of a running workflow in the Temporal UI."""
    metadata: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details
