"""The real engine's evidence about desktops that ended, each in another way."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import docker
import pytest

from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, SandboxHandle, SandboxSpec

Start = Callable[..., Awaitable[tuple[SandboxHandle, Any, str]]]


@pytest.fixture
async def provider(deployment_id: str) -> AsyncIterator[DockerProvider]:
    opened = DockerProvider(f"{deployment_id}-mortem", max_desktops=8)
    yield opened
    await opened.remove_all({LABEL_DEPLOYMENT: opened.deployment})
    await opened.close()


@pytest.fixture
def start(provider: DockerProvider, docker_client: docker.DockerClient, desktop_image: str) -> Start:
    async def start(**changes: Any) -> tuple[SandboxHandle, Any, str]:
        spec = SandboxSpec(
            deployment=provider.deployment,
            rollout=uuid.uuid4().hex,
            attempt=1,
            execution="e",
            image=desktop_image,
            vnc_port=8006,
            **changes,
        )
        handle = await provider.create(spec)
        container = await asyncio.to_thread(docker_client.containers.get, handle.sandbox_id)
        return handle, container, await provider.nonce(handle.sandbox_id)

    return start


async def ended(container: Any) -> None:
    """Wait until the container has stopped."""
    await asyncio.to_thread(container.wait, timeout=60)


async def test_ends_by_itself_and_from_outside(provider: DockerProvider, start: Start) -> None:
    async def by_root() -> tuple[str, str]:
        handle, container, nonce = await start()
        await asyncio.to_thread(container.exec_run, ["sh", "-c", "kill -9 -1"])
        await ended(container)
        cause = await provider.cause(handle.sandbox_id, nonce)
        return cause.kind, cause.detail

    async def from_outside(verb: str) -> str:
        handle, container, nonce = await start()
        await asyncio.to_thread(getattr(container, verb), **({"force": True} if verb == "remove" else {}))
        return (await provider.cause(handle.sandbox_id, nonce)).kind

    own, killed, removed = await asyncio.gather(by_root(), from_outside("kill"), from_outside("remove"))
    assert own == ("guest", "the desktop's first process ended by itself, with code 1")
    assert (killed, removed) == ("host", "host")


async def test_a_desktop_that_runs_and_does_not_answer(provider: DockerProvider, start: Start) -> None:
    handle, container, nonce = await start()
    await asyncio.to_thread(container.restart, timeout=0)
    assert (await provider.cause(handle.sandbox_id, nonce)).kind == "host"
    handle, container, nonce = await start()
    await asyncio.to_thread(container.exec_run, ["sh", "-c", "chmod 0 /bin/true /usr/bin/true"])
    cause = await provider.cause(handle.sandbox_id, nonce)
    assert (cause.kind, "cannot run `true`" in cause.detail) == ("guest", True)
    await asyncio.to_thread(container.pause)
    assert (await provider.cause(handle.sandbox_id, nonce)).kind == "host"


async def test_an_engine_that_does_not_answer_is_the_hosts_failure() -> None:
    nowhere = DockerProvider("nowhere", max_desktops=1, base_url="unix:///nowhere.sock", api_timeout_s=2)
    assert (await nowhere.cause("0" * 64, "nonce")).kind == "host"
    await nowhere.close()
