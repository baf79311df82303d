"""An episode whose history grows continues as new between two attempts, and loses nothing by it."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from models import names
from models.episode import Acted, Decision, EpisodeResult, EpisodeStart, read_start
from models.outcome import Infra
from rollbook.stack.children import Command
from rollbook.temporal.plugin import RollbookPlugin
from tests.doubles.fake_activities import FakeActivities, fails, fake_worker
from tests.support.episodes import Handle, replay
from tests.support.servers import TemporalServer, new_temporal

EVENTS = 100
"""The history length after which this server suggests to continue as new; an attempt of ten steps has more."""


class ShortHistories(TemporalServer):
    """A server with another limit; nothing else differs."""

    def command(self) -> Command:
        command = super().command()
        limit = ("--dynamic-config-value", f"limit.historyCount.suggestContinueAsNew={EVENTS}")
        return replace(command, argv=(*command.argv, *limit))


@pytest.fixture(scope="module")
async def client(scratch: Path) -> AsyncIterator[Client]:
    usual = new_temporal(scratch / "short")
    server = ShortHistories(usual.directory, usual.log, usual.port)
    await server.start()
    yield await Client.connect(server.address, plugins=[RollbookPlugin()])
    await server.stop()


@pytest.fixture
async def fakes(client: Client) -> AsyncIterator[FakeActivities]:
    """Two attempts end as `sandbox_lost` in their tenth step, the third one is whole."""
    fakes = FakeActivities(f"q-{uuid.uuid4().hex[:8]}", max_steps=20)
    fakes.decisions = [*([Decision(action_count=1)] * 9), Decision(terminal_action="DONE")]

    async def lose(request: Any) -> Acted:
        if request.step == 9 and request.attempt.attempt_index < 3:
            await fails(Infra.SANDBOX_LOST)(request)
        return fakes.acted()

    fakes.on[names.ACT] = lose
    async with fake_worker(client, fakes):
        yield fakes


async def begin(client: Client, fakes: FakeActivities) -> Handle:
    key = f"b/os/t/{uuid.uuid4().hex[:8]}"
    return await client.start_workflow(
        names.EPISODE, EpisodeStart(rollout_key=key), id=key, task_queue=fakes.queue, result_type=EpisodeResult
    )


async def runs(client: Client, handle: Handle) -> list[tuple[Handle, WorkflowExecutionStatus | None]]:
    """The runs of an episode, the first one first."""
    description = await client.get_workflow_handle(handle.id).describe()
    ids, run_id = [], description.run_id
    while run_id:
        started = (await client.get_workflow_handle(handle.id, run_id=run_id).fetch_history()).events[0]
        ids.append(run_id)
        run_id = started.workflow_execution_started_event_attributes.continued_execution_run_id
    one = [client.get_workflow_handle(handle.id, run_id=run_id) for run_id in reversed(ids)]
    return [(each, (await each.describe()).status) for each in one]


async def test_each_attempt_gets_a_history_of_its_own(client: Client, fakes: FakeActivities) -> None:
    handle = await begin(client, fakes)
    result = await handle.result()
    assert (result.status, result.attempts, result.admitted) == ("final", 3, True)
    assert [request.n for request in fakes.requests[names.CLAIM]] == [1, 2, 3]
    found = await runs(client, handle)
    done = WorkflowExecutionStatus.CONTINUED_AS_NEW
    assert [status for _, status in found] == [done, done, WorkflowExecutionStatus.COMPLETED]
    for run, _ in found:
        await replay(run)


async def test_a_freeze_outlasts_the_run(client: Client, fakes: FakeActivities) -> None:
    """Frozen while the first attempt ends: the next run waits until it is thawed."""

    async def freeze(request: Any) -> None:
        if request.attempt_index == 1:
            await handle.signal(names.FREEZE)

    async def thaw(request: Any) -> None:
        decided = [one.attempt.attempt_index for one in fakes.requests[names.DECIDE]]
        assert request.attempt_index == 2
        assert max(decided) == 1, "the second attempt has not begun to act"
        await client.get_workflow_handle(handle.id).signal(names.THAW)

    fakes.plan = fakes.plan.model_copy(update={"lease_s": 1.5})
    fakes.on[names.STOP_SANDBOX] = freeze
    fakes.on[names.RENEW_LEASE] = thaw
    handle = await begin(client, fakes)
    assert (await handle.result()).attempts == 3
    assert fakes.count(names.RENEW_LEASE) >= 1
    for run, _ in await runs(client, handle):
        await replay(run)


async def test_a_cancel_at_the_end_of_a_run_is_kept(client: Client, fakes: FakeActivities) -> None:
    """It arrives while the desktop of an attempt that earned another is stopped: that one ends as cancelled."""

    async def cancel(request: Any) -> None:
        if request.attempt_index == 1:
            await client.get_workflow_handle(handle.id).cancel()

    fakes.on[names.STOP_SANDBOX] = cancel
    handle = await begin(client, fakes)
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, CancelledError)
    assert fakes.count(names.CLAIM) == 2
    assert fakes.outcome.facts.infrastructure_failure_reason == Infra.CANCELLED
    for run, _ in await runs(client, handle):
        await replay(run)


BAD_INPUTS = [
    ([{}], "rollout_key: required"),
    ([{"rollout_key": 7}], "rollout_key: "),
    ([{"rollout_key": "a/b/c/0", "attempts": -1}], "attempts: "),
    ([], "the input must be one JSON object with rollout_key"),
    (["a/b/c/0"], "the input must be one JSON object with rollout_key"),
]


@pytest.mark.parametrize(("inputs", "message"), BAD_INPUTS)
async def test_an_input_that_is_none_ends_the_episode_and_names_the_field(
    client: Client, fakes: FakeActivities, inputs: list[Any], message: str
) -> None:
    handle: Handle = await client.start_workflow(
        names.EPISODE, args=inputs, id=f"bad-{uuid.uuid4().hex[:8]}", task_queue=fakes.queue
    )
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    error: Any = caught.value.cause
    assert (error.type, error.non_retryable) == (names.INVALID_INPUT, True)
    assert error.message.startswith(message)
    assert fakes.log == []


def test_an_input_of_an_older_worker_is_read() -> None:
    assert read_start([{"rollout_key": "a/b/c/0", "unknown": 1}]) == EpisodeStart(rollout_key="a/b/c/0")
