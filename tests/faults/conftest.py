"""One world of real desktops for all fault tests; its worker reaches the Docker engine through a gate."""

from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest

from tests.doubles.engine_gate import EngineGate
from tests.support.servers import remove_deployment
from tests.support.world import World, counting_script, counting_task, killable_world

TASKS = [
    counting_task("plain"),
    counting_task("slow-postconfig", slow_postconfig_s=6),
    counting_task("slow-evaluation", slow_evaluation_s=8),
    *(counting_task(f"count-{number}") for number in range(4)),
]


@pytest.fixture(scope="session")
async def engine_gate(scratch: Path) -> AsyncIterator[EngineGate]:
    """The worker's way to the Docker engine; tests reach it directly."""
    gate = EngineGate(scratch / "engine.sock")
    await gate.open()
    yield gate
    await gate.shut()


@pytest.fixture
async def gate(engine_gate: EngineGate) -> AsyncIterator[EngineGate]:
    """The gate, for a test that shuts it; open again after the test, also when it failed."""
    yield engine_gate
    await engine_gate.open()


@pytest.fixture(scope="session")
async def world(
    scratch: Path, docker_client: docker.DockerClient, desktop_image: str, engine_gate: EngineGate, deployment_id: str
) -> AsyncIterator[World]:
    """Servers and a worker of their own that tests may kill; each test uses a batch of its own."""
    deployment = f"{deployment_id}-faults"
    async with killable_world(
        scratch / "faults",
        deployment,
        docker_client,
        {"DOCKER_HOST": engine_gate.docker_host},
        heartbeat_s=4,
        pump_slice_s=3,
        max_desktops=4,
    ) as world:
        await world.system.register_tasks("counting", TASKS)
        await world.system.register_script("counting", counting_script())
        yield world
    remove_deployment(docker_client, deployment)
