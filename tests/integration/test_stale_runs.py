"""Runs that end without a word, come back, or answer late: each ends in a correct row. On the do-nothing desktop.

Temporal, Postgres and the worker are real. What a real desktop adds (journal, frozen worker processes) is in
tests/faults.
"""

import asyncio
import dataclasses
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities import pump
from activities.desktop import DesktopActivities
from activities.ledger import LedgerActivities
from activities.policy import PolicyActivities
from models import names
from models.base import Wire
from models.batch import RegisterBatch
from models.contract import Resolved
from models.episode import (
    ActRequest,
    AttemptRef,
    ClaimRequest,
    DecideRequest,
    DesktopRef,
    DesktopRequest,
    EpisodeStart,
    FinalizeRequest,
    Observation,
)
from models.evidence import ArtifactRef
from models.janitor import Reconciled, ReconcileRequest
from models.outcome import OutcomeFacts
from models.spec import read_spec
from rollbook.desktop.driver import Driver
from rollbook.errors import CapacityBusy
from rollbook.sandboxes.provider import SandboxProvider
from rollbook.worker.services import Services
from tests.support.system import System, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until
from worker_main import make_worker, queues

LONG = {"policy": {"kind": "noop", "waits": 100}, "limits": {"max_steps": 120}}
"""Long enough to be interrupted, short enough to be finished."""
DONE = OutcomeFacts(evaluation_completed=True, terminal_action="DONE")


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str) -> AsyncIterator[System]:
    settings = system_settings(scratch / "zombies", ledger_url, f"{deployment_id}-z")
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("one", small_tasks(1))
        yield system


async def query(system: System, statement: str, **values: Any) -> list[dict[str, Any]]:
    async with system.ledger.engine.connect() as connection:
        return [dict(row) for row in (await connection.execute(text(statement), values)).mappings()]


async def ends(system: System, key: str) -> list[tuple[str, str, bool]]:
    statement = (
        "SELECT termination_reason, closed_by, selected FROM outcome WHERE rollout_key = :k ORDER BY attempt_index"
    )
    return [tuple(row.values()) for row in await query(system, statement, k=key)]


async def plan(system: System, batch_id: str, **changes: Any) -> str:
    """Plan a batch of one rollout without a batch workflow; its key."""
    request = RegisterBatch(
        batch_id=batch_id,
        namespace=system.client.namespace,
        spec=read_spec(null_spec("one", **LONG, **changes)),
        launch_id=uuid.uuid4().hex,
    )
    resolved = Resolved(evaluator_revision="null", null_desktop=True)
    await system.ledger.register_batch(request, deployment_id=system.settings.deployment_id, resolved=resolved)
    return f"{batch_id}/os/t000/0"


async def episode(system: System, key: str, timeout_s: float | None = None) -> Any:
    """Start the rollout's Episode as the pump does."""
    return await system.client.start_workflow(
        names.EPISODE,
        EpisodeStart(rollout_key=key),
        id=key,
        task_queue=system.settings.task_queue_orchestrate,
        execution_timeout=timedelta(seconds=timeout_s) if timeout_s else None,
    )


async def playing(system: System, key: str, attempt: int = 1) -> None:
    """Wait until the attempt has acted a few times."""

    async def acted() -> bool:
        statement = "SELECT count(*) AS n FROM turn WHERE rollout_key = :k AND attempt_index = :a"
        return bool((await query(system, statement, k=key, a=attempt))[0]["n"] >= 4)

    await until("the episode acts", acted, 60)


async def reconcile(system: System) -> Reconciled:
    found: Reconciled = await system.client.execute_workflow(
        names.JANITOR,
        ReconcileRequest(min_age_s=0, gap_s=0.01),
        id=f"janitor-{uuid.uuid4().hex}",
        task_queue=system.settings.task_queue_orchestrate,
        result_type=Reconciled,
    )
    return found


async def finish(system: System, batch_id: str, **changes: Any) -> Any:
    """Run the batch to its end while the Janitor removes what dead runs left; the audit is clean."""
    handle = await system.start_batch(null_spec("one", **LONG, **changes), batch_id)
    running = asyncio.create_task(handle.result())
    async with asyncio.timeout(90):
        while not running.done():
            await reconcile(system)
            await asyncio.sleep(0.5)
    report = await system.audit(batch_id)
    assert report.ok, report.findings
    return running.result()


async def test_a_timed_out_episode_is_closed_and_runs_again(system: System) -> None:
    key = await plan(system, "timed-out")
    handle = await episode(system, key, timeout_s=2)
    await playing(system, key)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert (await handle.describe()).status == WorkflowExecutionStatus.TIMED_OUT
    (row,) = await query(system, "SELECT state FROM rollout WHERE rollout_key = :k", k=key)
    assert row["state"] == "running", "nobody told the ledger"
    assert (await reconcile(system)).closed == [], "one sighting proves nothing"
    assert (await reconcile(system)).closed == [f"{key} attempt 1"]
    assert (await finish(system, "timed-out")).counts.admitted == 1
    assert await ends(system, key) == [("reconciled", "reconcile", True), ("agent_done", "episode", True)]


async def test_a_terminated_episode_is_superseded_by_the_next(system: System) -> None:
    """No reconciliation: the next run closes what the terminated one left, and takes no attempt from the budget."""
    key = await plan(system, "terminated", max_attempts=1)
    handle = await episode(system, key)
    await playing(system, key)
    await handle.terminate("a test")
    await episode(system, key)
    await playing(system, key, 2)
    assert (await finish(system, "terminated", max_attempts=1)).counts.admitted == 1
    assert await ends(system, key) == [("superseded", "claim", False), ("agent_done", "episode", True)]


async def test_a_batch_does_not_wait_for_ever_for_a_desktop(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """A desktop that cannot be stopped delays its batch by a fixed time, whatever the length of a pump call."""
    monkeypatch.setattr(pump, "DESKTOPS_WAIT_S", 7.0)
    assert system.settings.pump_slice_s < pump.DESKTOPS_WAIT_S
    key = await plan(system, "left-over")
    handle = await episode(system, key)
    await playing(system, key)
    await handle.terminate("a test")
    await episode(system, key)
    async with asyncio.timeout(90):
        result = await system.run_batch(null_spec("one", **LONG), "left-over")
    assert (result.state, result.counts.admitted) == ("complete", 1)
    assert await ends(system, key) == [("superseded", "claim", False), ("agent_done", "episode", True)]
    report = await system.audit("left-over")
    assert report.ok, report.findings
    assert [notice.kind for notice in report.notices] == ["live_desktop"], "it is on record"


async def test_a_reset_episode_leaves_one_result(system: System) -> None:
    """The reset run has the old claim in its history but another id: fenced; reconciliation brings the row back."""
    key = await plan(system, "reset")
    handle = await episode(system, key)
    await playing(system, key)
    await _reset(system, key)
    first = await query(system, "SELECT run_id FROM attempt WHERE rollout_key = :k", k=key)

    async def over() -> bool:
        return (await system.client.get_workflow_handle(key).describe()).status != WorkflowExecutionStatus.RUNNING

    await until("the reset run has ended", over, 60)
    assert (await handle.describe()).status != WorkflowExecutionStatus.RUNNING
    assert len(first) == 1
    for _ in range(2):
        await reconcile(system)
    assert (await finish(system, "reset")).counts.admitted == 1
    found = await ends(system, key)
    assert [reason for reason, _, selected in found if selected][-1] == "agent_done"
    assert sum(reason == "agent_done" for reason, _, _ in found) == 1, "one result, however many runs"


async def _reset(system: System, key: str) -> None:
    """`temporal workflow reset` to an early workflow task, in the middle of the episode."""
    program = Path(sys.executable).with_name("temporal")
    process = await asyncio.create_subprocess_exec(
        str(program), "workflow", "reset", "--workflow-id", key, "--type", "LastWorkflowTask",
        "--reason", "a test", "--address", system.client.service_client.config.target_host,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def as_run(key: str, run_id: str) -> ActivityEnvironment:
    """An activity that still works for a run, whatever became of it."""
    environment = ActivityEnvironment()
    environment.info = ActivityEnvironment.default_info()
    environment.info = dataclasses.replace(environment.info, workflow_id=key, workflow_run_id=run_id)
    return environment


async def test_late_words_of_an_older_attempt_change_nothing(system: System) -> None:
    """Every activity of the terminated run comes back after the rollout was decided by another: all are fenced."""
    key = await plan(system, "late")
    handle = await episode(system, key)
    await playing(system, key)
    await handle.terminate("a test")
    assert (await finish(system, "late")).counts.admitted == 1
    before = await _everything(system, key)
    old = AttemptRef(rollout_key=key, attempt_index=1)
    desktop = DesktopRef(provider="null", sandbox_id="x", sandbox_key="x", nonce="null")
    services = system.services
    statement = "SELECT run_id FROM attempt WHERE rollout_key = :k AND attempt_index = 1"
    zombie = as_run(key, (await query(system, statement, k=key))[0]["run_id"])
    seen = Observation(screenshot=ArtifactRef(sha256="0" * 64, size_bytes=1, media_type="image/png"))
    late: list[tuple[Callable[..., Any], Wire]] = [
        (LedgerActivities(services).finalize, FinalizeRequest(attempt=old, facts=DONE, steps=3)),
        (LedgerActivities(services).claim, ClaimRequest(rollout_key=key, n=2)),
        (PolicyActivities(services).decide, DecideRequest(attempt=old, step=900, observation=seen)),
        (DesktopActivities(services).act, ActRequest(attempt=old, step=900, desktop=desktop)),
    ]
    for work, argument in late:
        with pytest.raises(ApplicationError) as refused:
            await zombie.run(work, argument)
        assert (refused.value.type, refused.value.non_retryable) == (names.FENCED, True), work
    assert await _everything(system, key) == before


async def _everything(system: System, key: str) -> list[Any]:
    tables = ("rollout", "attempt", "outcome", "admission", "turn", "model_call", "evaluation")
    return [
        await query(system, f"SELECT * FROM {name} WHERE rollout_key = :k ORDER BY 1, 2, 3", k=key) for name in tables
    ]


class Unsteady(Services):
    """Infrastructure that fails each activity's first try: no room for a desktop, then broken connections."""

    def provider(self, name: str) -> SandboxProvider:
        info = activity.info()
        if info.attempt == 1 and info.activity_type == names.START_SANDBOX:
            raise CapacityBusy("rehearsed: no room", retry_after_s=0.1)
        return super().provider(name)

    async def driver(self, call: DesktopRequest) -> Driver:
        if activity.info().attempt == 1:
            raise ConnectionResetError("rehearsed: the connection broke")
        return await super().driver(call)


async def test_retries_inside_an_attempt_do_not_burn_the_budget(
    scratch: Path, database_url: str, temporal_address: str, deployment_id: str
) -> None:
    """One attempt allowed, every activity on a desktop fails once: it is still attempt 1 that is admitted."""
    settings = system_settings(scratch / "unsteady", database_url, f"{deployment_id}-u")
    async with running_system(settings, temporal_address, workers=False) as system:
        unsteady = Unsteady(**vars(system.services))
        ((queue, work),) = queues("all", unsteady, system.client).items()
        await system.register_tasks("one", small_tasks(1))
        async with make_worker(system.client, queue, work, settings):
            spec = null_spec("one", policy={"kind": "noop", "waits": 1}, max_attempts=1)
            result = await system.run_batch(spec, "unsteady")
        assert result.counts.admitted == 1
        assert await ends(system, "unsteady/os/t000/0") == [("agent_done", "episode", True)]
        history = await system.client.get_workflow_handle("unsteady/os/t000/0").fetch_history()
        tries = [
            event.activity_task_started_event_attributes.attempt
            for event in history.events
            if event.HasField("activity_task_started_event_attributes")
        ]
        assert tries.count(2) >= 5, (
            "setup, observation, action, postconfig, evaluation and the desktop were tried twice"
        )
        report = await system.audit("unsteady")
        assert report.ok, report.findings
