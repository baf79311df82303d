"""A deadline counts work, not the time for which a worker is suspended."""

import asyncio
import os
import signal
from pathlib import Path

from tests.support.system import NO_PAUSES, WorkerProcess, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until

DEADLINE_S = 10


async def test_the_only_worker_stops_for_longer_than_the_deadline(
    scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str
) -> None:
    directory = scratch / "stalls"
    await asyncio.to_thread(directory.mkdir)
    settings = system_settings(directory, ledger_url, deployment_id)
    spec = null_spec(
        "three",
        policy={"kind": "noop", "waits": 8},
        settle=NO_PAUSES | {"after_action_s": 0.2},
        limits={"deadline_s": DEADLINE_S},
        concurrency=3,
    )
    async with running_system(settings, temporal_address, workers=False) as system:
        await system.register_tasks("three", small_tasks(3))
        worker = WorkerProcess(settings, temporal_address, directory / "worker.log")
        await worker.start()
        process = worker._process
        assert process is not None
        try:
            handle = await system.start_batch(spec, "stalled")

            async def acting() -> bool:
                return len(await system.ledger.running("stalled")) == 3

            await until("every episode runs", acting)
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.sleep(DEADLINE_S + 2)
            os.kill(process.pid, signal.SIGCONT)
            result = await handle.result()
        finally:
            os.kill(process.pid, signal.SIGCONT)
            await worker.stop()
        assert (result.state, result.counts.admitted, result.counts.planned) == ("complete", 3, 3)
        assert [row["termination_reason"] for row in await system.ledger.rollouts("stalled")] == ["agent_done"] * 3
