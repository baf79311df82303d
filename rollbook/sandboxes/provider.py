"""What every sandbox provider promises, and the small objects that pass between it and its callers (DESIGN §7)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from models.identity import sandbox_key
from rollbook.guest.http import SERVICE_PORTS, Endpoint, OnProgress

LABEL_DEPLOYMENT = "rollbook.deployment"
LABEL_KEY = "rollbook.key"
LABEL_ROLLOUT = "rollbook.rollout"
LABEL_ATTEMPT = "rollbook.attempt"
LABEL_BATCH = "rollbook.batch"
LABEL_EXPIRES = "rollbook.expires_at"


def ignore_progress(note: str) -> None:
    """For callers that do not heartbeat."""


IsOwner = Callable[[], Awaitable[bool]]
"""Asked before a failed or cancelled start cleans up: is the desktop still this caller's to remove? A try that was
given up for dead may wake up when another try has adopted the desktop."""


async def always_owner() -> bool:
    """For callers without rivals."""
    return True


class Limits(BaseModel):
    """What one desktop may use of its host."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: float = Field(default=2.0, gt=0)
    """Cores; a host with fewer gives what it has."""
    memory_mib: int = Field(default=3072, ge=128)
    """Memory, swap included."""
    pids: int = Field(default=2048, ge=64)
    """Processes and threads."""
    shm_mib: int = Field(default=512, ge=16)
    """Size of /dev/shm (Chromium needs more than Docker's default)."""


class SandboxSpec(BaseModel):
    """The desktop of one attempt. Its identity is (deployment, rollout, attempt) and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deployment: str = Field(min_length=1)
    rollout: str = Field(min_length=1)
    """The logical rollout's key."""
    attempt: int = Field(ge=1)
    batch: str = ""
    image: str = Field(min_length=1)
    """A Docker image, or whatever the provider calls its templates."""
    image_field: str = "desktop.image"
    """Where the image's name comes from, for the message when there is no such image."""
    screen: tuple[int, int] = (1920, 1080)
    """Width and height in pixels; the desktop is ready only when its screenshot has this size."""
    limits: Limits = Limits()
    egress: Literal["none", "open"] = "none"
    """Whether the guest may reach the internet."""
    env: Mapping[str, str] = Field(default_factory=dict)
    vnc_port: int = Field(default=8006, ge=1, le=65535)
    """The guest's port with the live view: 8006 on Docker, 6901 on E2B."""
    ready_timeout_s: float = Field(default=600.0, gt=0)
    ready_poll_s: float = Field(default=0.2, gt=0)
    cleanup_timeout_s: float = Field(default=120.0, gt=0)
    """How long the cleanup after a failed start is waited for (upstream contract §6.2)."""
    ttl_s: float = Field(default=7200.0, gt=0)
    """Upper bound of the desktop's life; the lease in the ledger is what counts."""

    @field_validator("screen")
    @classmethod
    def _screen(cls, value: tuple[int, int]) -> tuple[int, int]:
        if min(value) < 320 or max(value) > 8192:
            raise ValueError("screen: width and height must lie between 320 and 8192 pixels")
        return value

    @model_validator(mode="after")
    def _ports_differ(self) -> "SandboxSpec":
        if self.vnc_port in SERVICE_PORTS:
            raise ValueError(f"vnc_port: {self.vnc_port} is taken by a service port {SERVICE_PORTS}; use another")
        return self

    @property
    def key(self) -> str:
        """Label under which this desktop is looked up, adopted and stopped."""
        return sandbox_key(self.deployment, self.rollout, self.attempt)

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port of the guest that may be reached."""
        return (*SERVICE_PORTS, self.vnc_port)

    def labels(self, expires_at: datetime) -> dict[str, str]:
        """The labels of the sandbox."""
        return {
            LABEL_DEPLOYMENT: self.deployment,
            LABEL_KEY: self.key,
            LABEL_ROLLOUT: self.rollout,
            LABEL_ATTEMPT: str(self.attempt),
            LABEL_BATCH: self.batch,
            LABEL_EXPIRES: expires_at.isoformat(timespec="seconds"),
        }


class SandboxHandle(BaseModel):
    """A desktop that was ready when this was written. Small, without secrets: it may enter a history."""

    model_config = ConfigDict(frozen=True)

    provider: str
    sandbox_id: str
    key: str
    created_at: datetime
    adopted: bool = False
    """Whether an earlier try of the same start had created it."""
    image_digest: str = ""
    """What the image name meant when the desktop was created."""
    vnc_port: int
    isolation: Literal["partial", "full"] = "partial"
    """`full` only where the guest is known to be unable to reach its host (DESIGN §7)."""


class SandboxStatus(StrEnum):
    """What a provider knows about a sandbox."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    """It exists and will not run again."""
    GONE = "gone"
    """The provider says that there is no such sandbox."""
    UNKNOWN = "unknown"
    """The provider did not answer: neither life nor death is proven."""


@dataclass(frozen=True)
class SandboxInfo:
    """One line of a listing."""

    sandbox_id: str
    key: str
    status: SandboxStatus
    created_at: datetime
    labels: Mapping[str, str]


class SandboxProvider(Protocol):
    """Creates, finds and removes desktops. Every method may be repeated, and raises ProviderUnavailable (but for
    `status`) when the provider does not answer: that proves nothing about any sandbox.
    """

    name: str

    async def create(
        self, spec: SandboxSpec, on_progress: OnProgress = ignore_progress, is_owner: IsOwner = always_owner
    ) -> SandboxHandle:
        """Find the sandbox of `spec.key` or create it, and wait until it shows a screenshot.

        On failure, cancellation included, whatever carries the key is removed within `cleanup_timeout_s`, unless
        `is_owner` says no or cannot say; the original error is raised. Raises CapacityBusy, SandboxStartFailed,
        ProviderUnavailable.
        """

    async def status(self, sandbox_id: str) -> SandboxStatus:
        """Never raises: an error of the provider is `unknown`."""

    async def endpoint(self, sandbox_id: str, port: int) -> Endpoint:
        """Where a declared port is reached. Raises InvalidInput for another port, SandboxLost for a dead sandbox."""

    async def stop(self, sandbox_id: str) -> None:
        """Remove the sandbox; success when it is gone already. ProviderUnavailable when that cannot be confirmed."""

    async def stop_key(self, key: str) -> int:
        """Remove everything that carries `key`, until nothing has appeared for a while; returns how many."""

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """Sandboxes with all of `labels`, which must name the deployment. Never a partial list."""

    async def find_image(self, image: str) -> str | None:
        """None when sandboxes can be made of `image`, fetched first if need be; else why it cannot be had."""

    async def tidy(self) -> None:
        """Remove what the provider keeps for this deployment beside sandboxes, if there are none now."""

    async def close(self) -> None:
        """Release connections and threads; sandboxes stay."""


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
