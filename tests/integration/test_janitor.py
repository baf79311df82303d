"""The Janitor on the whole system with the do-nothing desktop: rows whose workflow is gone come back."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from models import names
from models.reconcile import Reconciled, ReconcileRequest
from rollbook.janitor import ensure_janitor, schedule_id
from tests.faults.waiting import until
from tests.system import System, null_spec, running_system, small_tasks, system_settings

ENDLESS = {"policy": {"kind": "noop", "waits": 5000}, "limits": {"max_steps": 1000}}


@pytest.fixture(scope="module")
async def system(
    scratch: Path, module_database_url: str, temporal_address: str, deployment_id: str
) -> AsyncIterator[System]:
    settings = system_settings(scratch / "janitor", module_database_url, f"{deployment_id}-j")
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
    await until("one runs", lambda: _one_runs(system, "left"))
    await handle.terminate("a test")
    found = await _reconcile(system, 3)
    assert found.unattended == ["left"]
    assert (await system.ledger.counts("left")).planned == 2


async def _one_runs(system: System, batch_id: str) -> bool:
    return (await system.ledger.counts(batch_id)).running == 1


async def test_nothing_is_concluded_about_another_deployment(
    system: System, scratch: Path, module_database_url: str, temporal_address: str
) -> None:
    other = system_settings(scratch / "other", module_database_url, "somebody-else")
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
