"""From a SandboxSpec to the arguments of Docker's create call, and from Docker's answers back to facts."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rollbook.errors import CapacityBusy
from rollbook.redaction import redact_tail
from rollbook.sandboxes.docker.engine import Engine, explain, parse_time
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, LABEL_KEY, IsOwner, SandboxInfo, SandboxSpec, SandboxStatus

NOWHERE_DNS = "127.0.0.1"
"""An address without a resolver: no name leaks outside. Docker's own resolver in between then stays silent, so a
look-up takes as long as the guest waits for it: 20 s (measured) unless the options make it one try of one second."""

LOG_LIMIT = {"type": "json-file", "config": {"max-size": "2m", "max-file": "1"}}
"""A guest may print without end; its log must not fill the host's disk."""

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""Root in the guest administers files, processes and accounts, as a task may ask. It has no raw sockets and does not
configure the network: no packet of a desktop can pass for another one's."""

_STATUS = {
    "created": SandboxStatus.STARTING,
    "restarting": SandboxStatus.STARTING,
    "running": SandboxStatus.RUNNING,
    "paused": SandboxStatus.RUNNING,
    "exited": SandboxStatus.STOPPED,
    "removing": SandboxStatus.STOPPED,
    "dead": SandboxStatus.STOPPED,
}


def container_name(spec: SandboxSpec) -> str:
    """One name per key, so that Docker itself refuses a second container for the same attempt."""
    return f"rollbook-{spec.key}"


def host_arguments(spec: SandboxSpec, network_id: str, publish_ip: str, host_cpus: int) -> dict[str, Any]:
    """Arguments of `create_host_config`: limits, loopback ports, no new privileges."""
    limits = spec.limits
    memory = limits.memory_mib * 1024 * 1024
    arguments: dict[str, Any] = {
        "network_mode": network_id,
        "port_bindings": {f"{port}/tcp": (publish_ip, None) for port in spec.ports},
        "security_opt": ["no-new-privileges"],
        "cap_drop": ["ALL"],
        "cap_add": list(CAPABILITIES),
        "mem_limit": memory,
        "memswap_limit": memory,
        "nano_cpus": math.floor(min(limits.cpus, host_cpus) * 1e9),
        "pids_limit": limits.pids,
        "shm_size": limits.shm_mib * 1024 * 1024,
        "log_config": LOG_LIMIT,
    }
    if spec.egress == "none":
        arguments |= {"dns": [NOWHERE_DNS], "dns_opt": ["timeout:1", "attempts:1"]}
    return arguments


def container_arguments(spec: SandboxSpec, now: datetime) -> dict[str, Any]:
    """Arguments of `create_container`, its host configuration aside."""
    return {
        "image": spec.image,
        "name": container_name(spec),
        "labels": spec.labels(now + timedelta(seconds=spec.ttl_s)),
        "environment": {
            "SCREEN_WIDTH": str(spec.screen[0]),
            "SCREEN_HEIGHT": str(spec.screen[1]),
            **spec.env,
        },
        "ports": list(spec.ports),
    }


def status_of(state: str) -> SandboxStatus:
    """Map Docker's state of a container to a status."""
    return _STATUS.get(state, SandboxStatus.UNKNOWN)


def info_of(row: Mapping[str, Any]) -> SandboxInfo:
    """One row of `GET /containers/json`."""
    labels = row.get("Labels") or {}
    return SandboxInfo(
        sandbox_id=row["Id"],
        key=labels.get(LABEL_KEY, ""),
        status=status_of(row["State"]),
        created_at=datetime.fromtimestamp(row["Created"], tz=UTC),
        labels=labels,
    )


def created_at(details: Mapping[str, Any]) -> datetime:
    """Creation time of an inspected container."""
    return parse_time(details["Created"])


def declared_ports(details: Mapping[str, Any]) -> set[int]:
    """Ports that the container was created with, running or not."""
    return {int(name.partition("/")[0]) for name in details["HostConfig"].get("PortBindings") or {}}


def host_port(details: Mapping[str, Any], port: int) -> int | None:
    """The host's port behind a guest's port; None while the container does not run."""
    bindings = (details["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp")
    return int(bindings[0]["HostPort"]) if bindings else None


def why_stopped(details: Mapping[str, Any], log: bytes) -> str:
    """Describe the container's end and its last output."""
    state = details["State"]
    memory = ", out of memory" if state.get("OOMKilled") else ""
    output = redact_tail(log.strip(), 2000)
    error = f", {state['Error']}" if state.get("Error") else ""
    end = f"{state['Status']} with code {state.get('ExitCode')}{memory}{error}"
    return f"the container {end}; its last output: {output or '(none)'}"


STALE_TICKET = timedelta(seconds=120)
"""A container that has not started by then belongs to a worker that died; it holds no place."""


FIRST_RETRY_S = 1.0
LAST_RETRY_S = 5.0
"""Pauses of the start that is next, and of one far back in the queue."""
GONE_S = 20.0
"""A start that has not asked again for so long, four times its pause, waits no more: its attempt has ended."""


class Capacity:
    """Places for the desktops of one deployment on one engine, given in the order in which attempts first asked.

    The order is by `SandboxSpec.asked_at`, which the ledger keeps, so every worker of a host has the same one.
    """

    def __init__(self, engine: Engine, deployment: str, max_desktops: int) -> None:
        self._engine = engine
        self._labels = {LABEL_DEPLOYMENT: deployment}
        self._max = max_desktops
        self._waiting: dict[str, tuple[datetime, float]] = {}
        """By key: when the attempt first asked, and when it asked last (monotonic seconds)."""

    async def check(self, spec: SandboxSpec) -> None:
        """Raises CapacityBusy when every place is taken, or awaited by starts that have waited for longer."""
        rows = await self._engine.rows(self._labels)
        taken = sum(row["State"] in ("running", "paused", "restarting") for row in rows)
        self._judge(spec, taken, self._ahead_of(spec))

    async def admit(self, spec: SandboxSpec, container_id: str) -> None:
        """Let a created container have its place, or remove it and raise CapacityBusy."""
        rows = await self._engine.rows(self._labels)
        running = [row for row in rows if row["State"] in ("running", "paused", "restarting")]
        waiting = [row for row in rows if row["State"] == "created"]
        if len(running) + len(waiting) <= self._max:
            return
        try:
            # a start that passed `check` only competes with the other containers that wait for a place
            self._judge(spec, len(running) + await self._earlier(container_id, waiting), 0)
        except CapacityBusy:
            await self._engine.remove(container_id)
            raise

    async def _earlier(self, container_id: str, waiting: list[dict[str, Any]]) -> int:
        times: dict[str, datetime] = {}
        for row in waiting:
            details = await self._engine.inspect(row["Id"])
            if details is not None:
                times[row["Id"]] = created_at(details)
        mine = (times.get(container_id, datetime.now(UTC)), container_id)
        fresh = datetime.now(UTC) - STALE_TICKET
        return sum(fresh < at and (at, other) < mine for other, at in times.items() if other != container_id)

    def _ahead_of(self, spec: SandboxSpec) -> int:
        """Number of starts that asked earlier and still wait."""
        now = time.monotonic()
        self._waiting = {key: ticket for key, ticket in self._waiting.items() if now - ticket[1] < GONE_S}
        mine = (spec.asked_at, spec.key)
        return sum((asked_at, key) < mine for key, (asked_at, _) in self._waiting.items())

    def _judge(self, spec: SandboxSpec, taken: int, ahead: int) -> None:
        if taken + ahead < self._max:
            self._waiting.pop(spec.key, None)
            return
        self._waiting[spec.key] = (spec.asked_at, time.monotonic())
        raise CapacityBusy(
            f"{taken} of {self._max} desktops are running (ROLLBOOK_MAX_DESKTOPS), {ahead} starts have waited longer",
            retry_after_s=min(FIRST_RETRY_S + ahead, LAST_RETRY_S),
        )


log = logging.getLogger(__name__)

CLOSE_WAIT_S = 30.0


class FailedStarts:
    """Cleanups under way, and creations that may still bring something to clean up."""

    def __init__(self, stop_key: Callable[[str], Awaitable[int]]) -> None:
        self._stop_key = stop_key
        self._creations: dict[asyncio.Task[str], str] = {}
        self._cleanups: set[asyncio.Task[None]] = set()

    def remember(self, key: str, call: Coroutine[Any, Any, str]) -> asyncio.Task[str]:
        """A creation whose caller is cancelled goes on in its thread; the cleanup waits for what it brings."""
        creation = asyncio.create_task(call)
        self._creations[creation] = key
        creation.add_done_callback(lambda task: self._creations.pop(task, None))
        return creation

    async def clean_up(self, spec: SandboxSpec, error: BaseException, is_owner: IsOwner) -> None:
        """Log the error, then remove what carries the key, unless `is_owner` denies it; wait `cleanup_timeout_s`."""
        log.warning("desktop %s did not start: %s", spec.key, explain(error))
        cleanup = asyncio.create_task(self._clean_up(spec.key, is_owner))
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)
        try:
            done, _ = await asyncio.wait({cleanup}, timeout=spec.cleanup_timeout_s)
        except asyncio.CancelledError:
            log.warning("desktop %s: cancelled again, its cleanup goes on in the background", spec.key)
            return
        if not done:
            log.error("desktop %s: cleanup took over %g s, left to the janitor", spec.key, spec.cleanup_timeout_s)
        elif cleanup.exception() is not None:
            log.error("desktop %s: cleanup failed: %s", spec.key, cleanup.exception())

    async def _clean_up(self, key: str, is_owner: IsOwner) -> None:
        if not await is_owner():
            log.warning("desktop %s: another try has it, or will have; left alone", key)
            return
        creations = [task for task, name in self._creations.items() if name == key]
        await asyncio.gather(*creations, return_exceptions=True)
        await self._stop_key(key)

    async def close(self) -> None:
        """Wait a while for the cleanups under way."""
        if self._cleanups:
            await asyncio.wait(self._cleanups, timeout=CLOSE_WAIT_S)
