"""Removes the desktop that a lease names."""

from typing import Protocol

from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, LABEL_KEY, SandboxProvider


class LeaseLike(Protocol):
    """What must be known of a desktop to remove it."""

    @property
    def sandbox_key(self) -> str:
        """Its label."""
        ...

    @property
    def sandbox_id(self) -> str | None:
        """The provider's id; None when its creation was never seen to succeed."""
        ...

    @property
    def deployment_id(self) -> str:
        """Who owns it."""
        ...


async def remove_sandbox(provider: SandboxProvider, lease: LeaseLike) -> None:
    """Kill by id and look once; where no id was ever recorded, a create may still be under way: until quiet."""
    if lease.sandbox_id is None:
        await provider.stop_key(lease.sandbox_key)
        return
    await provider.stop(lease.sandbox_id)
    if await provider.list({LABEL_DEPLOYMENT: lease.deployment_id, LABEL_KEY: lease.sandbox_key}):
        await provider.stop_key(lease.sandbox_key)
