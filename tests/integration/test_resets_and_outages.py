"""Attempts to lose or stick a rollout on the whole system with the do-nothing desktop."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest, StartWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from models import names
from models.janitor import Reconciled, ReconcileRequest
from tests.support.system import System, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until

ENDLESS = {"policy": {"kind": "noop", "waits": 5000}, "limits": {"max_steps": 1000}}


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str) -> AsyncIterator[System]:
    settings = system_settings(scratch / "resets", ledger_url, f"{deployment_id}-s")
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("two", small_tasks(2))
        yield system


async def running(system: System, batch_id: str, number: int = 2) -> bool:
    query = "SELECT count(*) FROM rollout WHERE batch_id = :batch_id AND state = 'running'"
    async with system.ledger.engine.connect() as connection:
        return bool(await connection.scalar(text(query), {"batch_id": batch_id}) == number)


async def reconcile(system: System, name: str) -> Reconciled:
    result: Reconciled = await system.client.execute_workflow(
        names.JANITOR,
        ReconcileRequest(min_age_s=0, gap_s=0.01),
        id=f"janitor-{system.settings.deployment_id}-{name}",
        task_queue=system.settings.task_queue_orchestrate,
        result_type=Reconciled,
    )
    return result


async def test_a_relaunch_thaws_what_an_earlier_launch_froze(system: System) -> None:
    spec = null_spec("two", policy={"kind": "noop", "waits": 30}, limits={"max_steps": 50})
    handle = await system.start_batch(spec, "frozen")
    await until("both run", lambda: running(system, "frozen"))
    await handle.signal("pause", {"freeze": True})

    async def stands_still() -> bool:
        control = await system.ledger.batch_control("frozen")
        return control.frozen

    await until("frozen", stands_still)
    await asyncio.sleep(1)
    await handle.terminate("a test")
    async with asyncio.timeout(60):
        result = await system.run_batch(spec, "frozen")
    assert (result.state, result.counts.admitted) == ("complete", 2)


async def test_a_reset_episode_ends_in_a_correct_row(system: System) -> None:
    handle = await system.start_batch(null_spec("two", **ENDLESS), "reset")
    await until("both run", lambda: running(system, "reset"))
    await asyncio.sleep(1)
    key = "reset/os/t000/0"
    await reset(system, key, 10)
    await reset(system, "reset/os/t001/0", 4)
    for number in range(3):  # also of a run that is the child of a reset, at its newest point
        await until("the live runs have attempts of their own", lambda: own_attempts(system, "reset"))
        if number < 2:
            await asyncio.sleep(1)
            await reset(system, key, 1_000_000)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    report = await system.audit("reset")
    assert report.ok, report.findings


async def own_attempts(system: System, batch_id: str) -> bool:
    """True if the newest attempt of every rollout is open and belongs to the running run."""
    statement = """
        SELECT rollout_key, run_id FROM rollout JOIN attempt USING (rollout_key)
        WHERE batch_id = :id AND attempt_index = current_attempt AND state = 'running'
            AND NOT EXISTS (SELECT FROM outcome WHERE outcome.rollout_key = rollout.rollout_key
                            AND outcome.attempt_index = attempt.attempt_index)
    """
    async with system.ledger.engine.connect() as connection:
        rows = (await connection.execute(text(statement), {"id": batch_id})).all()
    live = [(await system.client.get_workflow_handle(row.rollout_key).describe()).run_id for row in rows]
    return len(rows) == 2 and live == [row.run_id for row in rows]


async def reset(system: System, workflow_id: str, event_id: int) -> None:
    history = await system.client.get_workflow_handle(workflow_id).fetch_history()
    completed = [
        event.event_id for event in history.events if event.HasField("workflow_task_completed_event_attributes")
    ]
    finish = min(completed, key=lambda one: abs(one - event_id))
    description = await system.client.get_workflow_handle(workflow_id).describe()
    await system.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=system.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=description.run_id),
            reason="a test",
            workflow_task_finish_event_id=finish,
            request_id=os.urandom(8).hex(),
        )
    )


async def test_a_reset_batch_goes_on(system: System) -> None:
    spec = null_spec("two", policy={"kind": "noop", "waits": 200}, limits={"max_steps": 300}, concurrency=1)
    await system.start_batch(spec, "reset-batch")
    await until("one runs", lambda: running(system, "reset-batch", 1))
    await reset(system, "reset-batch", 10)
    await asyncio.sleep(0.5)
    handle = system.client.get_workflow_handle("reset-batch")
    await handle.signal("set_concurrency", 2)
    await until("both run", lambda: running(system, "reset-batch", 2), 20)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        async with asyncio.timeout(60):
            await handle.result()
    counts = await system.ledger.counts("reset-batch")
    assert (counts.running, counts.waiting) == (0, 0)


@pytest.mark.parametrize(
    "data",
    [b'{"task_set": "two", "policy": {"kind": "noop"}, "note": "\\ud83d"}', b'"x"', b'{"task_set": NaN}', b"[1e999]"],
)
async def test_a_payload_that_is_no_spec_fails_at_once(system: System, data: bytes) -> None:
    wid = f"raw-{os.urandom(4).hex()}"
    await system.client.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=system.client.namespace,
            workflow_id=wid,
            workflow_type=WorkflowType(name=names.BATCH),
            task_queue=TaskQueue(name=system.settings.task_queue_orchestrate),
            request_id=wid,
            input=Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=data)]),
        )
    )
    with pytest.raises(WorkflowFailureError) as failure:
        async with asyncio.timeout(20):
            await system.client.get_workflow_handle(wid).result()
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == names.INVALID_INPUT


async def test_a_batch_id_that_leaves_no_room_is_refused(system: System) -> None:
    """Temporal would take it, but not the ids of its episodes: the pump would try for ever."""
    with pytest.raises(WorkflowFailureError) as failure:
        async with asyncio.timeout(20):
            await system.run_batch(null_spec("two"), "l" * 995)
    assert "workflow id" in str(failure.value.cause)


async def test_an_artifact_store_that_fails_for_a_while_is_waited_for(system: System) -> None:
    store = system.settings.state_dir / "artifacts"
    handle = await system.start_batch(
        null_spec("two", policy={"kind": "noop", "waits": 40}, limits={"max_steps": 50}), "store"
    )
    await until("both run", lambda: running(system, "store"))
    store.rename(store.with_name("away"))
    store.write_text("no directory")
    await asyncio.sleep(3)
    store.unlink()
    store.with_name("away").rename(store)
    async with asyncio.timeout(90):
        result = await handle.result()
    assert result.counts.admitted == 2
    report = await system.audit("store")
    assert report.ok, report.findings
