"""An operator gone mad: episodes are cancelled, terminated, reset, frozen and thawed at random; the roll call holds."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.service import RPCError

from models import names
from models.janitor import Reconciled, ReconcileRequest
from tests.support.ledger import rows
from tests.support.system import System, null_spec, running_system, small_tasks, system_settings


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str) -> AsyncIterator[System]:
    settings = system_settings(scratch / "chaos", ledger_url, f"{deployment_id}-c", pump_slices_per_run=2)
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("ten", small_tasks(10))
        yield system


@pytest.mark.slow
async def test_whatever_is_done_to_episodes_every_row_ends_once(system: System) -> None:
    spec = null_spec(
        "ten",
        samples=2,
        concurrency=8,
        seed=11,
        policy={"kind": "noop", "waits": 12},
        limits={"max_steps": 30},
        max_attempts=6,
    )
    handle = await system.start_batch(spec, "chaos")
    batch = asyncio.create_task(handle.result())
    dice = random.Random(5)
    janitor = asyncio.create_task(_sweep(system))
    done: dict[str, int] = {}
    try:
        async with asyncio.timeout(240):
            for _ in range(40):
                if batch.done():
                    break
                await asyncio.sleep(0.25)
                keys = await system.ledger.in_flight("chaos")
                if keys:
                    verb = dice.choice(["cancel", "terminate", "reset", "reset", "freeze", "batch"])
                    await _do(system, verb, dice.choice(keys), dice)
                    done[verb] = done.get(verb, 0) + 1
            await handle.signal("resume")
            for key in await system.ledger.in_flight("chaos"):
                await _do(system, "thaw", key, dice)
            result = await batch
    except TimeoutError:
        await _tell(system)
        print(janitor)
        raise
    finally:
        janitor.cancel()
        batch.cancel()
    assert (result.state, result.counts.planned) == ("complete", 20)
    report = await system.audit("chaos")
    assert report.ok, report.findings
    twice = (
        "SELECT rollout_key FROM outcome WHERE rollout_key LIKE 'chaos/%' AND runtime_eligible"
        " GROUP BY rollout_key HAVING count(*) > 1"
    )
    assert await rows(system.ledger, twice) == []
    assert done.keys() >= {"cancel", "terminate", "reset", "freeze", "batch"}


async def _tell(system: System) -> None:
    """Rollouts that did not end, for the failure message."""
    for row in await rows(system.ledger, "SELECT * FROM rollout WHERE batch_id = 'chaos' AND state <> 'final'"):
        description = await system.client.get_workflow_handle(row["rollout_key"]).describe()
        print(row["rollout_key"], row["state"], row["current_attempt"], description.status, description.run_id)
    print(await system.ledger.batch_control("chaos"))


async def _sweep(system: System) -> None:
    for number in range(1000):
        await asyncio.sleep(1.5)
        found: Reconciled = await system.client.execute_workflow(
            names.JANITOR,
            ReconcileRequest(min_age_s=0.5, gap_s=0.01),
            id=f"janitor-chaos-{number}",
            task_queue=system.settings.task_queue_orchestrate,
            result_type=Reconciled,
        )
        assert found.doubts == [], found.doubts


async def _do(system: System, verb: str, key: str, dice: random.Random) -> None:
    episode = system.client.get_workflow_handle(key)
    batch = system.client.get_workflow_handle("chaos")
    try:
        if verb == "cancel":
            await episode.cancel()
        elif verb == "terminate":
            await episode.terminate("chaos")
        elif verb == "reset":
            await _reset(system, key, dice)
        elif verb == "freeze":
            await episode.signal(names.FREEZE)
            await asyncio.sleep(0.2)
            await episode.signal(names.THAW)
        elif verb == "thaw":
            await episode.signal(names.THAW)
        else:
            await batch.signal("pause", {"freeze": dice.random() < 0.5})
            await asyncio.sleep(0.2)
            await batch.signal("resume")
    except RPCError:
        pass  # it has ended meanwhile


async def _reset(system: System, key: str, dice: random.Random) -> None:
    history = await system.client.get_workflow_handle(key).fetch_history()
    finished = [
        event.event_id for event in history.events if event.HasField("workflow_task_completed_event_attributes")
    ]
    if not finished:
        return
    await system.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=system.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=key),
            reason="chaos",
            workflow_task_finish_event_id=dice.choice(finished),
            request_id=os.urandom(8).hex(),
        )
    )
