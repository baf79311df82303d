"""kill -9 of worker, Temporal and Postgres in the middle of a batch on real desktops."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.support.waiting import until
from tests.support.world import World, broken_world, counting_script, counting_task


@pytest.fixture
async def world(
    scratch: Path, docker_client: docker.DockerClient, desktop_image: str, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    name = f"crash-{request.node.callspec.params['victim']}-{id(request):x}"
    tasks = [counting_task(f"count-{number}") for number in range(10)]
    async with broken_world(scratch / name, docker_client, name, tasks, counting_script()) as made:
        yield made


def _server(world: World, victim: str) -> Any:
    return {"worker": world.worker, "temporal": world.temporal, "postgres": world.postgres}[victim]


async def _kill(world: World, victim: str) -> None:
    await _server(world, victim).kill9()


async def _start(world: World, victim: str) -> None:
    await _server(world, victim).start()


@pytest.mark.parametrize("victim", ["worker", "temporal", "postgres"])
async def test_a_batch_survives_the_death_of(victim: str, world: World) -> None:
    handle = await world.system.start_batch(world.spec(), "crash")

    async def in_the_middle() -> bool:
        rows = await world.rows("SELECT count(*) AS n FROM turn WHERE step > 1")
        return bool(rows[0]["n"] >= 2)

    for _ in range(2):
        await until("actions are being run", in_the_middle)
        await _kill(world, victim)
        await asyncio.sleep(1.0)
        await _start(world, victim)
        await asyncio.sleep(4.0)

    async def final() -> bool:
        counts = await world.system.ledger.counts("crash")
        return counts.planned > 0 and counts.admitted + counts.masked == counts.planned

    await until("every row is final", final, 400)
    async with asyncio.timeout(120):
        result = await handle.result()
    assert (result.state, result.counts.planned) == ("complete", 10)
    outcomes = await world.scored("crash")
    # exactly once, as counted in the guest; an attempt may be masked and repeated, never scored wrongly
    assert [(row["score"], row["termination_reason"]) for row in outcomes] == [(1.0, "agent_done")] * 10
    report = await world.system.audit("crash")
    assert report.ok, report.findings
    doubled = await world.rows(
        "SELECT rollout_key FROM outcome WHERE NOT mask_sample GROUP BY rollout_key HAVING count(*) > 1"
    )
    assert doubled == []
    await world.no_desktop_is_left()
