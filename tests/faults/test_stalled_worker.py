"""A worker that stalls (SIGSTOP) beyond its heartbeats while another takes over, and then wakes up in the middle."""

import asyncio
import os
import signal

import pytest

from tests.support.system import WorkerProcess
from tests.support.waiting import until
from tests.support.world import World


async def stall(world: World) -> tuple[int, WorkerProcess]:
    """Stop the running worker in its tracks and start another one; the pid of the first."""
    process = world.worker._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    log = world.worker._log.with_name("second.log")
    second = WorkerProcess(world.system.settings, world.temporal.address, log)
    await second.start()
    return process.pid, second


async def turns(world: World, batch_id: str, number: int) -> bool:
    rows = await world.rows("SELECT count(*) AS n FROM turn WHERE rollout_key LIKE :like", like=f"{batch_id}/%")
    return bool(rows[0]["n"] >= number)


async def running_activity(world: World, key: str, activity: str, attempt: int = 1) -> bool:
    description = await world.system.client.get_workflow_handle(key).describe()
    pending = description.raw_description.pending_activities
    return any(
        one.activity_id == activity and one.HasField("last_started_time") and one.attempt >= attempt for one in pending
    )


async def attempts(world: World, batch_id: str) -> list[tuple[int, str, float | None]]:
    rows = await world.rows(
        "SELECT attempt_index, termination_reason, score, detail FROM outcome WHERE rollout_key LIKE :like ORDER BY 1",
        like=f"{batch_id}/%",
    )
    return [(row["attempt_index"], row["termination_reason"], row["score"]) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "activity"),
    [
        ("plain", "a1-start-sandbox"),
        ("plain", "a1-s002-act"),
        ("slow-evaluation", "a1-evaluate"),
    ],
)
async def test_a_worker_wakes_up_after_another_took_over(world: World, task: str, activity: str) -> None:
    batch_id = f"stalled-{task}-{activity}"
    key = f"{batch_id}/os/{task}/0"
    handle = await world.system.start_batch(world.spec(tasks={"ids": [task]}), batch_id)
    await until(f"{activity} runs", lambda: running_activity(world, key, activity))
    if activity == "a1-start-sandbox":

        async def created() -> bool:
            return len(await asyncio.to_thread(world.containers)) == 1

        await until("a desktop is created", created)
    pid, second = await stall(world)
    try:
        if activity == "a1-evaluate":
            await until("the second evaluates", lambda: running_activity(world, key, activity, 2), 60)
            await asyncio.sleep(2)
        else:
            known = 4 if activity == "a1-s002-act" else 2
            await until("the second acts", lambda: turns(world, batch_id, known), 120)
        os.kill(pid, signal.SIGCONT)
        async with asyncio.timeout(240):
            await handle.result()
    finally:
        os.kill(pid, signal.SIGCONT)
        await second.stop()
    ended = await attempts(world, batch_id)
    assert ended == [(1, "agent_done", 1.0)]
    report = await world.system.audit(batch_id)
    assert report.ok, report.findings
    await world.no_desktop_is_left()
