"""`docker kill` of a desktop: never a score from a dead desktop, and a fresh one scores."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest
from temporalio.client import WorkflowFailureError

from tests.faults.waiting import until
from tests.faults.world import World, broken_world, counting_script, counting_task

TASKS = [
    counting_task("plain"),
    counting_task("slow-postconfig", slow_postconfig_s=6),
    counting_task("slow-evaluation", slow_evaluation_s=6),
]


@pytest.fixture(scope="module")
async def world(scratch: Path, docker_client: docker.DockerClient, desktop_image: str) -> AsyncIterator[World]:
    name = f"lost-{id(docker_client):x}"
    async with broken_world(scratch / name, docker_client, name, TASKS, counting_script()) as made:
        yield made


async def _kill_when(world: World, key: str, activity: str) -> None:
    """Kill the desktop of a rollout while `activity` of its first attempt runs."""

    async def running() -> bool:
        description = await world.system.client.get_workflow_handle(key).describe()
        pending = description.raw_description.pending_activities
        return any(one.activity_id == activity and one.HasField("last_started_time") for one in pending)

    await until(f"{activity} runs", running)
    for container in await asyncio.to_thread(world.containers):
        if container.labels["rollbook.rollout"] == key:
            await asyncio.to_thread(container.kill)


@pytest.mark.parametrize(
    ("task", "activity"),
    [
        ("plain", "a1-s003-act"),
        ("slow-postconfig", "a1-run-postconfig"),
        ("slow-evaluation", "a1-evaluate"),
    ],
)
async def test_a_desktop_dies(world: World, task: str, activity: str) -> None:
    batch_id = f"lost-{task}"
    handle = await world.system.start_batch(world.spec(tasks={"ids": [task]}), batch_id)
    key = f"{batch_id}/os/{task}/0"
    await _kill_when(world, key, activity)
    async with asyncio.timeout(240):
        await handle.result()
    rows = await world.rows(
        "SELECT attempt_index, termination_reason, score, reward, mask_sample FROM outcome"
        " WHERE rollout_key = :key ORDER BY 1",
        key=key,
    )
    first, second = rows
    assert first["termination_reason"] in ("sandbox_lost", "evaluator_error")
    assert (first["score"], first["reward"], first["mask_sample"]) == (None, None, True)
    assert (second["termination_reason"], second["score"], second["mask_sample"]) == ("agent_done", 1.0, False)
    report = await world.system.audit(batch_id)
    assert report.ok, report.findings
    await world.no_desktop_is_left()


async def test_cancel_leaves_no_desktop_and_no_open_row(world: World) -> None:
    handle = await world.system.start_batch(world.spec(tasks={"ids": ["plain"]}, samples=6, concurrency=2), "cancelled")

    async def two_desktops() -> bool:
        return len(await asyncio.to_thread(world.containers)) >= 2

    await until("two desktops run", two_desktops)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        async with asyncio.timeout(120):
            await handle.result()
    counts = await world.system.ledger.counts("cancelled")
    assert (counts.planned, counts.waiting, counts.running) == (6, 0, 0)
    report = await world.system.audit("cancelled")
    assert report.ok, report.findings
    await world.no_desktop_is_left()
