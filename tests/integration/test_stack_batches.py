"""The local stack with a worker and real desktops, by the commands that people type: demo, a killed worker, down."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest

from rollbook.config.settings import PROJECT_ROOT
from rollbook.stack.processes import marked_processes
from rollbook.stack.state import StackState, StateDir
from tests.support.servers import containers_of, networks_of, remove_deployment, scratch_directory
from tests.support.waiting import until

SPEC = PROJECT_ROOT / "examples" / "batches" / "quickstart.json"


@dataclass
class Stack:
    """A stack of its own, reached by commands only."""

    deployment: str
    directory: Path
    environment: dict[str, str]

    async def start(self, *argv: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *argv,
            cwd=PROJECT_ROOT,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def rollbook(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a `rollbook` command."""
        process = await self.start(*rollbook_command(*arguments))
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    def state(self) -> StackState:
        found = StateDir(self.directory).read()
        assert found is not None
        return found

    async def row(self, name: str) -> dict[str, Any]:
        """One line of `rollbook ps`."""
        _, output = await self.rollbook("ps", "--json")
        return next(row for row in json.loads(output)["processes"] if row["name"] == name)


def rollbook_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rollbook.cli.main", *arguments]


@pytest.fixture
async def stack(docker_client: docker.DockerClient, desktop_image: str) -> AsyncIterator[Stack]:
    deployment = f"test-{uuid.uuid4().hex[:8]}"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLBOOK_", "TEMPORAL_"))}
    with scratch_directory() as directory:
        ours = {
            "ROLLBOOK_STATE_DIR": str(directory / "state"),
            "ROLLBOOK_DEPLOYMENT_ID": deployment,
            "ROLLBOOK_DESKTOP_IMAGE": desktop_image,
            "ROLLBOOK_WORKER_DRAIN_S": "3",
            "ROLLBOOK_HEARTBEAT_S": "5",
            "TEMPORAL_CONFIG_FILE": "/nonexistent/temporal.toml",
        }
        stack = Stack(deployment, directory / "state", inherited | ours)
        try:
            yield stack
        finally:
            code, output = await stack.rollbook("down")
            remove_deployment(docker_client, deployment)
            assert code == 0, output


async def test_demo_a_killed_worker_and_down_in_the_middle_of_a_batch(
    stack: Stack, docker_client: docker.DockerClient
) -> None:
    code, output = await stack.rollbook("up")
    assert code == 0, output
    assert stack.state().healthy()
    first = stack.state().children["worker"].ref
    assert first is not None

    demo = await stack.start(*rollbook_command("demo", "--batch-id", "first"))
    await _a_desktop_runs(stack, docker_client)
    assert first.signal(signal.SIGKILL)
    output_bytes, _ = await demo.communicate()
    output = output_bytes.decode()
    assert demo.returncode == 0, output
    assert "every result is as expected" in output
    worker = await stack.row("worker")
    assert (worker["state"], worker["restarts"], worker["last_exit"]) == ("ready", 1, "signal SIGKILL")
    environment = psutil.Process(worker["pid"]).environ()
    assert "//rollbook_worker@/" in environment["ROLLBOOK_DATABASE_URL"], "no superuser"
    assert environment["ROLLBOOK_ADOPT_TEMPORAL"] == "True", "Temporal and ledger are both the stack's own"
    _, log = await stack.rollbook("logs", "supervisor")
    assert "worker died: signal SIGKILL" in log
    assert "worker starts again in 0.5 s" in log
    await until("no desktop of the finished batch is left", lambda: _no_desktop(stack, docker_client), 60)

    await _plain_cli(stack, "second")
    await _a_desktop_runs(stack, docker_client)
    token = stack.state().token
    refs = [child.ref for child in stack.state().children.values()]
    assert token is not None
    assert marked_processes("ROLLBOOK_STACK_TOKEN", token)
    assert networks_of(docker_client, stack.deployment), "or there is nothing to remove"
    code, output = await stack.rollbook("down")
    assert code == 0, output
    assert "the stack is down" in output
    assert marked_processes("ROLLBOOK_STACK_TOKEN", token) == []
    assert not any(ref.alive() for ref in refs if ref is not None)
    assert containers_of(docker_client, stack.deployment) == []
    assert networks_of(docker_client, stack.deployment) == []


async def _plain_cli(stack: Stack, batch_id: str) -> None:
    """Start the quickstart batch as the README says: with `temporal`, knowing nothing of Rollbook's commands."""
    script = (
        f'export PATH={Path(sys.executable).parent}:$PATH\neval "$(rollbook env)"\n'
        'temporal workflow start --type BenchmarkBatch --task-queue "$ROLLBOOK_TASK_QUEUE" '
        f"--workflow-id {batch_id} --fail-existing --input-file {SPEC}"
    )
    process = await stack.start("bash", "-c", script)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def _a_desktop_runs(stack: Stack, client: docker.DockerClient) -> None:
    async def running() -> bool:
        found = await asyncio.to_thread(containers_of, client, stack.deployment)
        return any(container.status == "running" for container in found)

    await until("a desktop runs", running, 120)


async def _no_desktop(stack: Stack, client: docker.DockerClient) -> bool:
    return not await asyncio.to_thread(containers_of, client, stack.deployment)
