"""SIGTERM drains: running activities end where they are, nothing is run a second time."""

import asyncio
from pathlib import Path

from rollbook.config.settings import Settings
from tests.support.system import System, WorkerProcess, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until


async def _busy(system: System) -> bool:
    return (await system.ledger.counts("drained")).running == 4


async def _attempts(system: System, key: str) -> list[int]:
    """Temporal's attempt number of every activity of an episode; more than 1 means that it was run again."""
    history = await system.client.get_workflow_handle(key).fetch_history()
    started = [event.activity_task_started_event_attributes for event in history.events]
    return [one.attempt for one in started if one.attempt]


async def test_sigterm_runs_nothing_twice(scratch: Path, database_url: str, temporal_address: str) -> None:
    settings: Settings = system_settings(scratch / "drain", database_url, "drain", worker_drain_s=20)
    async with running_system(settings, temporal_address, workers=False) as system:
        await system.register_tasks("four", small_tasks(4))
        worker = WorkerProcess(settings, temporal_address, scratch / "drain.log")
        await worker.start()
        try:
            spec = null_spec(
                "four",
                concurrency=4,
                policy={"kind": "noop", "waits": 8},
                settle={"after_setup_s": 0, "after_action_s": 0.7, "before_evaluation_s": 0},
            )
            handle = await system.start_batch(spec, "drained")
            await until("four episodes act", lambda: _busy(system))
            for _ in range(2):
                await asyncio.sleep(1.5)
                await worker.stop()
                await worker.start()
            result = await handle.result()
        finally:
            await worker.stop()
        assert result.counts.admitted == 4
        for number in range(4):
            assert set(await _attempts(system, f"drained/os/t{number:03d}/0")) == {1}
        assert (await system.audit("drained")).ok
