"""`docker restart` of a desktop between two steps: the container is the same, the desktop is another."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest

from tests.support.waiting import until
from tests.support.world import World, broken_world, counting_script, counting_task


@pytest.fixture(scope="module")
async def world(scratch: Path, docker_client: docker.DockerClient, desktop_image: str) -> AsyncIterator[World]:
    name = f"restart-{id(docker_client):x}"
    async with broken_world(
        scratch / name, docker_client, name, [counting_task("plain")], counting_script(1.0)
    ) as made:
        yield made


async def test_a_restarted_desktop_is_a_lost_one(world: World) -> None:
    handle = await world.system.start_batch(world.spec(), "restarted")

    async def second_turn() -> bool:
        return bool((await world.rows("SELECT count(*) AS n FROM turn"))[0]["n"] >= 2)

    await until("it acts", second_turn)
    (container,) = await asyncio.to_thread(world.containers)
    await asyncio.to_thread(container.restart, timeout=0)
    async with asyncio.timeout(240):
        await handle.result()
    ended = await world.rows("SELECT attempt_index, termination_reason, score FROM outcome ORDER BY 1")
    assert [tuple(row.values()) for row in ended] == [(1, "sandbox_lost", None), (2, "agent_done", 1.0)]
    report = await world.system.audit("restarted")
    assert report.ok, report.findings
    await world.no_desktop_is_left()
