"""The interface of sandbox providers, and the values that pass between a provider and its callers."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from models.contract import DesktopLimits
from models.episode import DesktopRequest
from models.identity import sandbox_key
from models.outcome import Cause
from rollbook.config.findings import Check
from rollbook.config.settings import Settings
from rollbook.desktop.driver import Driver
from rollbook.desktop.http_driver import HttpDriver
from rollbook.errors import InvalidInput, ProviderUnavailable, RollbookError, SandboxLost
from rollbook.guest.http import GUEST_PORT, SERVICE_PORTS, Endpoint, OnProgress, guest_trouble, read_nonce
from rollbook.osworld.environment import EvaluatorEnv

LABEL_DEPLOYMENT = "rollbook.deployment"
LABEL_KEY = "rollbook.key"
LABEL_ROLLOUT = "rollbook.rollout"
LABEL_ATTEMPT = "rollbook.attempt"
LABEL_BATCH = "rollbook.batch"
LABEL_EXPIRES = "rollbook.expires_at"
LABEL_STACK = "rollbook.stack"

NONCE_TIMEOUT_S = 10.0


def ignore_progress(note: str) -> None:
    """For callers that do not heartbeat."""


IsOwner = Callable[[], Awaitable[bool]]
"""Asked before a failed or cancelled start cleans up: may the caller still remove the desktop? A try that was
presumed dead may wake up after another try has adopted the desktop."""


async def always_owner() -> bool:
    """For callers without rivals."""
    return True


class SandboxSpec(BaseModel):
    """The desktop of one attempt. Its identity is (deployment, rollout, attempt, execution) and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deployment: str = Field(min_length=1)
    rollout: str = Field(min_length=1)
    """The logical rollout's key."""
    attempt: int = Field(ge=1)
    execution: str = Field(min_length=1)
    """The attempt's execution id, which no other claim of any ledger has."""
    batch: str = ""
    asked_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    """Time at which the attempt first asked for a desktop: the first to ask is served first."""
    stack: str = ""
    """`Settings.stack_id` of the worker that starts it: `down` removes the desktops of its own stack only."""
    image: str = Field(min_length=1)
    """A Docker image or the provider's name of a template; its digest where one was registered."""
    image_field: str = "desktop.image"
    """The origin of the image's name, for the message when there is no such image."""
    screen: tuple[int, int] = (1920, 1080)
    """Width and height in pixels; the desktop is ready only when its screenshot has this size."""
    limits: DesktopLimits = DesktopLimits()
    egress: Literal["none", "open"] = "none"
    """`open`: the guest may reach the internet."""
    env: Mapping[str, str] = Field(default_factory=dict)
    vnc_port: int = Field(ge=1, le=65535)
    """The guest's port with the live view: the provider's `vnc_port`."""
    ready_timeout_s: float = Field(default=600.0, gt=0)
    ready_poll_s: float = Field(default=0.2, gt=0)
    cleanup_timeout_s: float = Field(default=120.0, gt=0)
    """Time limit of the wait for the cleanup after a failed start."""
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
        return sandbox_key(self.deployment, self.rollout, self.attempt, self.execution)

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
            LABEL_STACK: self.stack,
            LABEL_EXPIRES: expires_at.isoformat(timespec="seconds"),
        }


@dataclass(frozen=True)
class ImageInfo:
    """An image as its provider knows it."""

    name: str
    """The name that was asked for."""
    digest: str | None = None
    """Its immutable identity; None where the provider has none."""
    manifest: str | None = None
    """JSON in which the image says what it holds (docs/reference/desktop-image.md); None without one."""


class SandboxHandle(BaseModel):
    """A desktop that was ready when this was written. Small, without secrets: it may enter a history."""

    model_config = ConfigDict(frozen=True)

    provider: str
    sandbox_id: str
    key: str
    created_at: datetime
    adopted: bool = False
    """True when an earlier try of the same start had created it."""
    image_digest: str = ""
    """Digest behind the image's name when the desktop was created."""
    vnc_port: int
    isolation: Literal["partial", "full"] = "partial"
    """`full` only where the guest is known to be unable to reach its host."""


class SandboxStatus(StrEnum):
    """The state of a sandbox, as its provider reports it."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    """It exists and will not run again."""
    GONE = "gone"
    """The provider reports that there is no such sandbox."""
    UNKNOWN = "unknown"
    """The provider did not answer: neither life nor death is proven."""


class Examination(BaseModel):
    """A desktop's guest server as its provider sees it from outside: the guest has no say in it."""

    model_config = ConfigDict(frozen=True)

    tampered: bool = False
    """The guest server is not the image's."""
    detail: str = ""
    """The evidence in words; empty when it is the image's, as far as can be seen."""
    evidence: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class SandboxInfo:
    """One line of a listing."""

    sandbox_id: str
    key: str
    status: SandboxStatus
    created_at: datetime
    labels: Mapping[str, str]


class Removed(NamedTuple):
    """Numbers of removed desktops and networks."""

    desktops: int
    networks: int


class SandboxProvider(ABC):
    """Creates, finds and removes desktops of one deployment.

    Every method may be repeated, and raises ProviderUnavailable (`status` excepted) when the provider does not answer:
    that proves nothing about any sandbox. A provider implements the abstract methods; the others suit any guest that
    runs OSWorld's server on port 5000. `tests/conformance/test_providers.py` checks every registered provider.
    """

    name: str
    vnc_port: ClassVar[int] = 8006
    """The guest's port with the live view."""
    view_path: ClassVar[str] = "/vnc.html?autoconnect=1&resize=scale&view_only=1"
    """Path of the live view on that port; the default is noVNC's."""

    @abstractmethod
    async def create(
        self, spec: SandboxSpec, on_progress: OnProgress = ignore_progress, is_owner: IsOwner = always_owner
    ) -> SandboxHandle:
        """Find the sandbox of `spec.key` or create it, and wait until it shows a screenshot.

        On failure, cancellation included, whatever carries the key is removed within `cleanup_timeout_s`, unless
        `is_owner` returns False or fails; the original error is raised. Raises CapacityBusy, SandboxStartFailed,
        ProviderUnavailable.
        """

    @abstractmethod
    async def status(self, sandbox_id: str) -> SandboxStatus:
        """Return what is known of the sandbox. Never raises: an error of the provider is `unknown`."""

    @abstractmethod
    async def endpoint(self, sandbox_id: str, port: int) -> Endpoint:
        """Return where a declared port is reached. Raises InvalidInput for another port, SandboxLost for a dead
        sandbox."""

    @abstractmethod
    async def stop(self, sandbox_id: str) -> None:
        """Remove the sandbox; success when it is gone already. ProviderUnavailable when that cannot be confirmed."""

    @abstractmethod
    async def stop_key(self, key: str) -> int:
        """Remove everything that carries `key`, until nothing has appeared for a while; returns how many."""

    @abstractmethod
    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """Return the sandboxes with all of `labels`, which must name the deployment. Never a partial list."""

    @abstractmethod
    async def inspect_image(self, image: str) -> ImageInfo:
        """Return the facts about an image, fetched first if need be; raises InvalidInput when there is none."""

    async def driver(self, request: DesktopRequest, evaluator: EvaluatorEnv | None) -> Driver:
        """Return the driver of an attempt's desktop. Raises SandboxLost for a dead sandbox."""
        endpoint = partial(self.endpoint, request.desktop.sandbox_id)
        return HttpDriver(request.desktop, await endpoint(GUEST_PORT), evaluator, endpoint)

    async def nonce(self, sandbox_id: str) -> str:
        """Return the boot identity of the guest: another value later means that another guest answers."""
        return await read_nonce(await self.endpoint(sandbox_id, GUEST_PORT), NONCE_TIMEOUT_S)

    async def cause(self, sandbox_id: str, nonce: str) -> Cause:
        """Find out why a desktop whose guest had this `nonce` failed. Repeatable; a dead provider is a cause, too.

        A provider that knows how its sandboxes end says more than this: only a guest that runs and does not work
        is recognised here.
        """
        try:
            if await self.status(sandbox_id) is not SandboxStatus.RUNNING:
                return Cause(kind="unknown", detail="the desktop does not run any more")
            trouble = await guest_trouble(await self.endpoint(sandbox_id, GUEST_PORT), nonce)
        except ProviderUnavailable as error:
            return Cause(kind="host", detail=str(error))
        except SandboxLost as error:
            return Cause(kind="unknown", detail=str(error))
        if trouble:
            return Cause(kind="guest", detail=f"the desktop runs, and {trouble}")
        return Cause(kind="unknown", detail="the desktop runs, and its guest server is sound again")

    async def server_process(self, sandbox_id: str) -> str:
        """Return what names the guest server's process, from outside; empty where that cannot be seen."""
        return ""

    async def examine(self, sandbox_id: str, started_as: str) -> Examination:
        """Look at the guest server from outside, which was the process `started_as` when the desktop started.

        Raises ProviderUnavailable; a desktop that is gone shows nothing.
        """
        return Examination()

    async def view_url(self, sandbox_id: str) -> str:
        """Return the URL of the live view, without a password; empty without one."""
        try:
            endpoint = await self.endpoint(sandbox_id, self.vnc_port)
        except RollbookError:
            return ""  # the live view is a convenience: an attempt runs without it
        return f"{endpoint.url.rstrip('/')}{self.view_path}"

    async def tidy(self) -> int:
        """Remove what the provider keeps for this deployment besides sandboxes (networks), if it has no sandbox;
        returns how many."""
        return 0

    async def remove_all(self, labels: Mapping[str, str]) -> Removed:
        """Remove every sandbox with all of `labels`, which must name the deployment, then what else it kept."""
        desktops = 0
        # Until a listing is empty: a worker killed a moment ago may have left a creation on its way.
        while rows := await self.list(labels):
            await asyncio.gather(*(self.stop(row.sandbox_id) for row in rows))
            desktops += len(rows)
        return Removed(desktops, await self.tidy())

    async def close(self) -> None:  # noqa: B027
        """Release connections and threads; sandboxes stay."""


class DefaultImage(NamedTuple):
    """The image of a spec that names none."""

    name: str
    setting: str | None
    """The setting that names it; None when the provider builds it."""


def _always(settings: Settings) -> bool:
    return True


def _no_image(settings: Settings, variant: str) -> DefaultImage:
    return DefaultImage("none", None)


@dataclass(frozen=True, kw_only=True)
class ProviderKind:
    """The registration of a provider: read by workers, CLI, doctor, `down`, `ps` and the validation of specs."""

    name: str
    """As specs write it in `desktop.provider`."""
    open: Callable[[Settings, float], SandboxProvider]
    """Open the provider for the deployment of the settings; the number is the timeout of one request in seconds. Must
    not raise because the provider is down."""
    enabled: Callable[[Settings], bool] = _always
    """Return whether a worker with these settings offers it."""
    enable_hint: str = ""
    """The setting to change where it is not enabled."""
    default_image: Callable[[Settings, str], DefaultImage] = _no_image
    """The image for a `desktop.variant`, where the spec names none."""
    default_image_source: str = "the provider's default image"
    """The origin of that image, for error messages."""
    simulated_revision: str | None = None
    """For a provider without real desktops: recorded as the evaluator's revision, since its scores mean nothing."""
    checks: tuple[Callable[[Settings], Check], ...] = ()
    """Examinations of this machine for `rollbook doctor`."""


def require_deployment(labels: Mapping[str, str]) -> None:
    """Raise InvalidInput for labels of a listing that would show sandboxes of every deployment."""
    if not labels.get(LABEL_DEPLOYMENT):
        raise InvalidInput(f"labels: {LABEL_DEPLOYMENT} is required; a listing must not show other deployments")


class LeaseLike(Protocol):
    """The facts about a desktop that its removal needs."""

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
        """Its owner."""
        ...


async def remove_sandbox(provider: SandboxProvider, lease: LeaseLike) -> None:
    """Kill by id and look once; where no id was ever recorded, a create may still be under way: until quiet."""
    if lease.sandbox_id is None:
        await provider.stop_key(lease.sandbox_key)
        return
    await provider.stop(lease.sandbox_id)
    if await provider.list({LABEL_DEPLOYMENT: lease.deployment_id, LABEL_KEY: lease.sandbox_key}):
        await provider.stop_key(lease.sandbox_key)
