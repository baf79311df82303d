"""Speed of a real slim desktop: start to first screenshot, screenshot, act."""

import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial

import docker

from bench.report import Figure
from models.episode import DesktopRef
from rollbook.config.settings import get_settings
from rollbook.desktop.http_driver import HttpDriver
from rollbook.guest.http import GUEST_PORT, read_nonce
from rollbook.sandboxes.docker.image import ensure_image
from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, SandboxHandle, SandboxSpec

CALLS = 40
ACTION = "import pyautogui; pyautogui.moveTo({x}, 300); pyautogui.click()"


async def run(desktops: int) -> list[Figure]:
    """Start desktops one after the other, and time what an episode does on the last one."""
    deployment = f"bench-{uuid.uuid4().hex[:8]}"
    image = get_settings().desktop_image or await ensure_image()
    provider = DockerProvider(deployment, max_desktops=get_settings().max_desktops)
    starts: list[float] = []
    stops: list[float] = []
    try:
        for number in range(desktops):
            spec = SandboxSpec(
                deployment=deployment,
                rollout=f"bench/{number}",
                attempt=1,
                execution="e",
                image=image,
                vnc_port=provider.vnc_port,
            )
            began = time.monotonic()
            handle = await provider.create(spec)
            starts.append((time.monotonic() - began) * 1000)
            if number == desktops - 1:
                calls = await _calls(provider, handle)
            began = time.monotonic()
            await provider.stop(handle.sandbox_id)
            stops.append((time.monotonic() - began) * 1000)
    finally:
        for sandbox in await provider.list({LABEL_DEPLOYMENT: deployment}):
            await provider.stop(sandbox.sandbox_id)
        await provider.close()
        _remove_networks(deployment)
    return [*_both("start to first screenshot", starts), *calls, *_both("stop", stops)]


async def _calls(provider: DockerProvider, handle: SandboxHandle) -> list[Figure]:
    """Each call on a connection of its own, as an activity makes it."""
    guest = await provider.endpoint(handle.sandbox_id, GUEST_PORT)
    nonce = await read_nonce(guest, 10)
    desktop = DesktopRef(provider="docker", sandbox_id=handle.sandbox_id, sandbox_key=handle.key, nonce=nonce)

    endpoint = partial(provider.endpoint, handle.sandbox_id)

    async def timed(work: Callable[[HttpDriver, int], Awaitable[object]]) -> list[float]:
        found = []
        for number in range(CALLS):
            began = time.monotonic()
            driver = HttpDriver(desktop, await endpoint(GUEST_PORT), None, endpoint)
            await work(driver, number)
            await driver.close()
            found.append((time.monotonic() - began) * 1000)
        return found

    async def look(driver: HttpDriver, number: int) -> None:
        await driver.observe(screen=(1920, 1080), accessibility_tree=False, terminal=False)

    async def act(driver: HttpDriver, number: int) -> None:
        action = ACTION.format(x=100 + number)
        result = await driver.perform(uuid.uuid4().hex, action, runtime="canonical", timeout_s=60)
        if result.status != "ok":
            raise RuntimeError(f"the desktop did not act: {result}")

    return [*_both("screenshot", await timed(look)), *_both("act (move and click)", await timed(act))]


def _both(name: str, values: list[float]) -> list[Figure]:
    ordered = sorted(values)
    return [
        Figure(f"{name}, p50", statistics.median(ordered), "ms", note=f"{len(ordered)} times"),
        Figure(f"{name}, p95", ordered[round(0.95 * (len(ordered) - 1))], "ms"),
    ]


def _remove_networks(deployment: str) -> None:
    client = docker.from_env()
    for network in client.networks.list(filters={"label": f"{LABEL_DEPLOYMENT}={deployment}"}):
        network.remove()
    client.close()
