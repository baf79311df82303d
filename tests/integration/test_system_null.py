"""The whole system on the do-nothing desktop: what the ledger says after a batch."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError

from tests.support.system import System, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str) -> AsyncIterator[System]:
    settings = system_settings(scratch / "null", ledger_url, "rehearsed")
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("five", small_tasks(5))
        yield system


async def running(system: System, batch_id: str, number: int) -> bool:
    return (await system.ledger.counts(batch_id)).running == number


async def test_a_batch_runs_to_completion(system: System) -> None:
    result = await system.run_batch(null_spec("five", samples=2, concurrency=4), "null-1")
    assert result.state == "complete"
    assert (result.counts.planned, result.counts.admitted, result.counts.masked) == (10, 10, 0)
    report = await system.audit("null-1")
    assert report.ok, report.findings
    assert [result.digest] == report.completions == [report.digest]


async def test_relaunch_of_a_finished_batch_does_nothing(system: System) -> None:
    spec = null_spec("five")
    await system.run_batch(spec, "null-2")
    again = await system.run_batch(spec, "null-2")
    assert again.state == "already complete"
    assert again.counts.admitted == 5


async def test_another_contract_is_refused_with_the_difference(system: System) -> None:
    await system.run_batch(null_spec("five"), "null-3")
    with pytest.raises(WorkflowFailureError) as failure:
        await system.run_batch(null_spec("five", limits={"max_steps": 3}), "null-3")
    assert "limits.max_steps: 15 -> 3" in str(failure.value.cause)


async def test_stop_and_relaunch(system: System) -> None:
    spec = null_spec("five", samples=2, concurrency=1, policy={"kind": "noop", "waits": 4})
    handle = await system.start_batch(spec, "null-4")
    await until("one runs", lambda: running(system, "null-4", 1))
    await handle.signal("stop")
    stopped = await handle.result()
    assert (stopped.state, stopped.digest) == ("stopped", "")
    assert stopped.counts.waiting > 0
    assert stopped.counts.running == 0
    again = await system.run_batch(spec, "null-4")
    assert (again.state, again.counts.admitted) == ("complete", 10)
    assert (await system.audit("null-4")).ok


async def test_rehearsed_failures_are_masked_never_scored(system: System) -> None:
    # with this seed four first attempts fail, and one rollout fails three times
    result = await system.run_batch(null_spec("five", samples=3, concurrency=8, seed=1), "null-5")
    assert result.state == "complete"
    assert result.counts.masked > 0
    assert result.counts.admitted + result.counts.masked == 15
    report = await system.audit("null-5")
    assert report.ok, report.findings


async def test_a_hundred_steps_fit_the_history_budget(system: System) -> None:
    """Limits of a history: about 1,200 events and well under 1 MB per 100 steps, no payload above 16 KB."""
    spec = null_spec("five", tasks={"ids": ["t000"]}, policy={"kind": "noop", "waits": 99}, limits={"max_steps": 100})
    assert (await system.run_batch(spec, "null-7")).counts.admitted == 1
    history = await system.client.get_workflow_handle("null-7/os/t000/0").fetch_history()
    assert {"a1-s001-act", "a1-s100-decide"} <= {
        event.activity_task_scheduled_event_attributes.activity_id for event in history.events
    }
    assert len(history.events) <= 1300
    sizes = [event.ByteSize() for event in history.events]
    assert sum(sizes) < 600_000
    assert max(sizes) < 16_384


async def test_cancel_closes_every_row(system: System) -> None:
    spec = null_spec("five", samples=4, concurrency=3, policy={"kind": "noop", "waits": 200}, limits={"max_steps": 300})
    handle = await system.start_batch(spec, "null-6")
    await until("three run", lambda: running(system, "null-6", 3))
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    counts = await system.ledger.counts("null-6")
    assert (counts.planned, counts.waiting, counts.running) == (20, 0, 0)
    assert (await system.audit("null-6")).ok
