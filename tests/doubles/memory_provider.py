"""A sandbox provider as another package would write it: guests are HTTP servers in this process.

Good for what a provider must promise, and for its registration. It cannot prove that a desktop does anything: the
driver looks at the guest's picture, and pretends everything else.
"""

import asyncio
import io
from collections.abc import Mapping
from datetime import UTC, datetime

from PIL import Image

from models.episode import DesktopRequest
from rollbook.desktop.client import GuestClient
from rollbook.desktop.driver import Driver
from rollbook.desktop.observe import RawObservation, observe
from rollbook.errors import InvalidInput, SandboxLost
from rollbook.guest.http import GUEST_PORT, Endpoint, OnProgress, wait_ready
from rollbook.osworld.environment import EvaluatorEnv
from rollbook.sandboxes.null import REVISION, NullDriver
from rollbook.sandboxes.provider import (
    ImageInfo,
    IsOwner,
    ProviderKind,
    SandboxHandle,
    SandboxInfo,
    SandboxProvider,
    SandboxSpec,
    SandboxStatus,
    always_owner,
    ignore_progress,
    require_deployment,
)
from tests.doubles.http_guest import HttpGuest, command


class MemoryProvider(SandboxProvider):
    """Desktops that live as long as the provider."""

    name = "memory"
    vnc_port = 6901

    def __init__(self) -> None:
        self.guests: dict[str, tuple[HttpGuest, SandboxInfo]] = {}
        self._creating = asyncio.Lock()

    async def create(
        self, spec: SandboxSpec, on_progress: OnProgress = ignore_progress, is_owner: IsOwner = always_owner
    ) -> SandboxHandle:
        sandbox_id = f"memory-{spec.key}"
        now = datetime.now(UTC)
        async with self._creating:
            adopted = sandbox_id in self.guests
            if not adopted:
                on_progress("starting a guest")
                routes = {"/screenshot": _picture(spec.screen), "/execute": command(""), "/file": b"memory\n"}
                guest = await HttpGuest(nonce=sandbox_id, routes=routes).__aenter__()
                info = SandboxInfo(sandbox_id, spec.key, SandboxStatus.RUNNING, now, spec.labels(now))
                self.guests[sandbox_id] = (guest, info)
        await wait_ready(
            await self.endpoint(sandbox_id, GUEST_PORT),
            spec.screen,
            still_running=lambda: self._must_live(sandbox_id),
            timeout_s=spec.ready_timeout_s,
            poll_s=spec.ready_poll_s,
            on_progress=on_progress,
        )
        return SandboxHandle(
            provider=self.name,
            sandbox_id=sandbox_id,
            key=spec.key,
            created_at=now,
            adopted=adopted,
            vnc_port=spec.vnc_port,
        )

    async def _must_live(self, sandbox_id: str) -> None:
        if sandbox_id not in self.guests:
            raise SandboxLost(f"desktop {sandbox_id} is gone")

    async def status(self, sandbox_id: str) -> SandboxStatus:
        return SandboxStatus.RUNNING if sandbox_id in self.guests else SandboxStatus.GONE

    async def endpoint(self, sandbox_id: str, port: int) -> Endpoint:
        await self._must_live(sandbox_id)
        if port not in (GUEST_PORT, 9222, 8080, self.vnc_port):
            raise InvalidInput(f"port: {port} was not declared")
        return Endpoint(self.guests[sandbox_id][0].url)

    async def stop(self, sandbox_id: str) -> None:
        if entry := self.guests.pop(sandbox_id, None):
            await entry[0].die()

    async def stop_key(self, key: str) -> int:
        ids = [info.sandbox_id for _, info in self.guests.values() if info.key == key]
        for sandbox_id in ids:
            await self.stop(sandbox_id)
        return len(ids)

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        require_deployment(labels)
        return [info for _, info in self.guests.values() if labels.items() <= info.labels.items()]

    async def inspect_image(self, image: str) -> ImageInfo:
        return ImageInfo(image)

    async def driver(self, request: DesktopRequest, evaluator: EvaluatorEnv | None) -> Driver:
        guest = await self.endpoint(request.desktop.sandbox_id, GUEST_PORT)
        return MemoryDriver(request, guest)


class MemoryDriver(NullDriver):
    """Looks at the guest; pretends the rest."""

    def __init__(self, request: DesktopRequest, guest: Endpoint) -> None:
        super().__init__(request.attempt.rollout_key, request.attempt.attempt_index)
        self._client = GuestClient(guest, nonce=request.desktop.nonce)

    async def observe(self, *, screen: tuple[int, int], accessibility_tree: bool, terminal: bool) -> RawObservation:
        self._client.screen = screen
        return await observe(self._client)

    async def close(self) -> None:
        await self._client.__aexit__(None, None, None)


def _picture(screen: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.effect_noise(screen, 80).save(file, "PNG")
    return file.getvalue()


KIND = ProviderKind(name="memory", open=lambda settings, timeout_s: MemoryProvider(), simulated_revision=REVISION)
