"""The provider of the do-nothing desktop (see `rollbook.desktop.null_driver`): creates nothing, loses nothing."""

from collections.abc import Mapping
from datetime import UTC, datetime

from rollbook.errors import InvalidInput
from rollbook.sandboxes.provider import (
    Endpoint,
    Ours,
    SandboxHandle,
    SandboxInfo,
    SandboxSpec,
    SandboxStatus,
    Tick,
    always_ours,
    no_tick,
)


class NullProvider:
    """Sandboxes that are only names."""

    name = "null"

    async def create(self, spec: SandboxSpec, on_tick: Tick = no_tick, ours: Ours = always_ours) -> SandboxHandle:
        """A handle for the key."""
        return SandboxHandle(
            provider=self.name,
            sandbox_id=f"null-{spec.key}",
            key=spec.key,
            created_at=datetime.now(UTC),
            vnc_port=spec.vnc_port,
            isolation="full",
        )

    async def status(self, sandbox_id: str) -> SandboxStatus:
        """Always running."""
        return SandboxStatus.RUNNING

    async def endpoint(self, sandbox_id: str, port: int) -> Endpoint:
        """There is no guest to reach."""
        raise InvalidInput(f"the do-nothing desktop has no port {port}")

    async def stop(self, sandbox_id: str) -> None:
        """Nothing to stop."""

    async def stop_key(self, key: str) -> int:
        """Nothing to stop."""
        return 0

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """Nothing runs."""
        return []

    async def find_image(self, image: str) -> str | None:
        """Every image will do: none is used."""
        return None

    async def tidy(self) -> None:
        """There is nothing beside."""

    async def close(self) -> None:
        """Nothing to close."""
