"""The Janitor on the whole system with the do-nothing desktop: rows whose workflow is gone come back."""

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from activities.janitor import RUNNING_EPISODES
from models import names
from models.batch import RegisterBatch
from models.contract import Resolved
from models.episode import EpisodeStart
from models.janitor import Reconciled, ReconcileRequest
from models.spec import read_spec
from rollbook.osworld.runner import sockets_prefix
from rollbook.temporal.namespace import ensure_janitor, schedule_id
from tests.support.system import System, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until

ENDLESS = {"policy": {"kind": "noop", "waits": 5000}, "limits": {"max_steps": 1000}}


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str) -> AsyncIterator[System]:
    settings = system_settings(scratch / "janitor", ledger_url, f"{deployment_id}-j")
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("two", small_tasks(2))
        yield system


async def _reconcile(system: System, number: int) -> Reconciled:
    result: Reconciled = await system.client.execute_workflow(
        names.JANITOR,
        ReconcileRequest(min_age_s=0, gap_s=0.01),
        id=f"janitor-{system.settings.deployment_id}-{number}",
        task_queue=system.settings.task_queue_orchestrate,
        result_type=Reconciled,
    )
    return result


async def _running(system: System, batch_id: str) -> Any:
    counts = await system.ledger.counts(batch_id)
    desktops = await system.ledger.live_sandboxes(system.settings.deployment_id)
    return 0 < counts.planned == counts.running == len([one for one in desktops if one.state == "running"])


async def test_a_terminated_episode_is_closed_and_planned_again(system: System) -> None:
    handle = await system.start_batch(null_spec("two", **ENDLESS), "reaped")
    await until("both run", lambda: _running(system, "reaped"))
    key = "reaped/os/t000/0"
    await system.client.get_workflow_handle(key).terminate("a test")
    first = await _reconcile(system, 1)
    assert (first.missing, first.closed) == (1, []), "one sighting alone proves nothing"
    second = await _reconcile(system, 2)
    assert second.closed == [f"{key} attempt 1"]
    assert len(second.reaped) == 1

    async def second_attempt() -> bool:
        return [
            row.attempt_index
            for row in await system.ledger.suspects(system.settings.deployment_id, "default", 0)
            if row.rollout_key == key
        ] == [2]

    await until("a second attempt runs", second_attempt)
    await handle.cancel()
    await until("closed", lambda: _closed(system, "reaped"))
    report = await system.audit("reaped")
    assert report.ok, report.findings


async def _closed(system: System, batch_id: str) -> bool:
    counts = await system.ledger.counts(batch_id)
    return counts.planned > 0 and counts.running + counts.waiting == 0


async def test_a_terminated_batch_is_reported_and_its_rows_stay(system: System) -> None:
    handle = await system.start_batch(null_spec("two", concurrency=1, **ENDLESS), "left")
    await until("one runs", lambda: _run(system, "left", 1))
    await handle.terminate("a test")
    found = await _reconcile(system, 3)
    assert found.unattended == ["left"]
    assert (await system.ledger.counts("left")).planned == 2


async def _run(system: System, batch_id: str, number: int) -> bool:
    return (await system.ledger.counts(batch_id)).running == number


async def _plan(system: System, batch_id: str) -> list[str]:
    """Plan a batch of two rollouts without a batch workflow; their keys."""
    request = RegisterBatch(
        batch_id=batch_id,
        namespace=system.client.namespace,
        spec=read_spec(null_spec("two", **ENDLESS)),
        launch_id=uuid.uuid4().hex,
    )
    resolved = Resolved(evaluator_revision="null", null_desktop=True)
    await system.ledger.register_batch(request, deployment_id=system.settings.deployment_id, resolved=resolved)
    return [f"{batch_id}/os/t{number:03d}/0" for number in range(2)]


async def _stuck_episode(system: System, key: str) -> Any:
    """An Episode whose worker is away: it runs, and does nothing."""
    return await system.client.start_workflow(
        names.EPISODE, EpisodeStart(rollout_key=key), id=key, task_queue=f"nobody-{system.settings.deployment_id}"
    )


async def _was_cancelled(handle: WorkflowHandle[Any, Any]) -> bool:
    history = await handle.fetch_history()
    return any(event.HasField("workflow_execution_cancel_requested_event_attributes") for event in history.events)


async def test_a_workflow_whose_row_is_final_is_cancelled_by_its_run(system: System) -> None:
    keys = await _plan(system, "overtaken")
    old = await _stuck_episode(system, keys[0])
    await system.ledger.close_open("overtaken", "by hand")
    await until("it is listed", lambda: _listed(system, keys[0]), 30)
    assert (await _reconcile(system, 10)).cancelled == []
    assert (await _reconcile(system, 11)).cancelled == [keys[0]]
    assert await _was_cancelled(old)
    # what the Janitor relies on: a run that was replaced takes the cancel of its own id only
    await old.terminate("a test")
    new = await _stuck_episode(system, keys[0])
    await system.client.get_workflow_handle(keys[0], run_id=old.first_execution_run_id).cancel()
    assert not await _was_cancelled(system.client.get_workflow_handle(keys[0], run_id=new.first_execution_run_id))
    await new.terminate("a test")


async def _listed(system: System, key: str) -> bool:
    return key in [one.id async for one in system.client.list_workflows(RUNNING_EPISODES)]


async def test_a_queued_row_whose_workflow_never_was_waits_again(system: System) -> None:
    keys = await _plan(system, "never-was")
    await system.ledger.mark_queued(keys[:1])
    assert (await _reconcile(system, 12)).requeued == []
    found = await _reconcile(system, 13)
    assert (found.requeued, found.totals["requeued"]) == (keys[:1], 1)
    assert "never-was" in found.unattended
    await system.ledger.close_open("never-was", "the test is over")


async def test_a_batch_terminated_in_mid_cancel_is_finished(system: System) -> None:
    handle = await system.start_batch(null_spec("two", **ENDLESS), "mid-cancel")
    await until("both run", lambda: _run(system, "mid-cancel", 2))
    await system.ledger.mark_cancelling("mid-cancel", "enough of it")
    await handle.terminate("a test")
    assert (await _reconcile(system, 14)).finished == []
    assert (await _reconcile(system, 15)).finished == ["mid-cancel: 2 rows closed"]
    counts = await system.ledger.counts("mid-cancel")
    assert (counts.planned, counts.masked) == (2, 2)
    await until("the episodes have ended", lambda: _ended(system, "mid-cancel"), 60)
    report = await system.audit("mid-cancel")
    assert report.ok, report.findings


async def _ended(system: System, batch_id: str) -> bool:
    handles = [system.client.get_workflow_handle(f"{batch_id}/os/t{number:03d}/0") for number in range(2)]
    return all([(await handle.describe()).status != WorkflowExecutionStatus.RUNNING for handle in handles])


async def test_what_killed_workers_left_on_the_host_is_removed(system: System) -> None:
    work = system.services.work_root
    old, young = work / ("a" * 32), work / ("b" * 32)
    temporary = Path(tempfile.gettempdir())
    sockets = temporary / f"{sockets_prefix(work)}{'a' * 12}-test"
    others = [temporary / f"{sockets_prefix(Path('/other'))}{'a' * 12}-{work.name}", work.parent / "other" / ("a" * 32)]
    for directory in (old, young, sockets, *others):
        (directory / "cache").mkdir(parents=True)
        if directory != young:
            os.utime(directory, (time.time() - 7200,) * 2)
    await _reconcile(system, 21)
    assert [path.exists() for path in (old, young, sockets, *others)] == [False, True, False, True, True]
    for directory in (young, *others):
        shutil.rmtree(directory)


@pytest.mark.parametrize(("inputs", "said"), [([{"sightings": 1}], "sightings: "), ([{}, {}], "2 inputs")])
async def test_a_wrong_request_ends_at_once_and_names_the_field(system: System, inputs: list[Any], said: str) -> None:
    with pytest.raises(WorkflowFailureError) as refused:
        await system.client.execute_workflow(
            names.JANITOR, args=inputs, id=uuid.uuid4().hex, task_queue=system.settings.task_queue_orchestrate
        )
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, said in cause.message) == (names.INVALID_INPUT, True)


async def test_it_runs_without_any_input(system: System) -> None:
    found: Reconciled = await system.client.execute_workflow(
        names.JANITOR,
        id=uuid.uuid4().hex,
        task_queue=system.settings.task_queue_orchestrate,
        result_type=Reconciled,
    )
    assert found.doubts == []


async def test_nothing_is_concluded_about_another_deployment(
    system: System, scratch: Path, ledger_url: str, temporal_address: str
) -> None:
    other = system_settings(scratch / "other", ledger_url, "somebody-else")
    async with running_system(other, temporal_address) as stranger:
        for number in (4, 5):
            found = await _reconcile(stranger, number)
            assert (found.looked_at, found.closed, found.reaped, found.unattended) == (0, [], [], [])


async def test_the_schedule_is_made_once_and_stays_paused(system: System, temporal_client: Client) -> None:
    handle = system.client.get_schedule_handle(schedule_id(system.settings.deployment_id))
    await ensure_janitor(system.client, system.settings)
    await handle.pause()
    await ensure_janitor(system.client, system.settings)
    description = await handle.describe()
    assert description.schedule.state.paused
    await handle.delete()
