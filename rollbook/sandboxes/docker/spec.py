"""From a SandboxSpec to the arguments of Docker's create call, and from Docker's answers back to facts."""

import contextlib
import json
import math
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rollbook.sandboxes.provider import LABEL_KEY, SandboxInfo, SandboxSpec, SandboxStatus

LABEL_EGRESS = "rollbook.egress"
"""Label of networks, not of sandboxes."""

NOWHERE_DNS = "127.0.0.1"
"""A resolver that nobody answers at: no name leaks outside. Docker's own resolver in between then stays silent, so a
look-up takes as long as the guest waits for it: 20 s (measured) unless the options make it one try of one second."""

LOG_LIMIT = {"type": "json-file", "config": {"max-size": "2m", "max-file": "1"}}
"""A guest may print without end; its log must not fill the host's disk."""

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


def network_arguments(deployment: str, egress: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `create_network`: guests of a bridge do not see each other; without egress, no masquerade.

    Not an `internal` network: those publish no ports on Docker 20.10 (osworld-notes, corrections).
    """
    return {
        "name": f"rollbook-{deployment}-{egress}-{uuid.uuid4().hex[:8]}",
        "driver": "bridge",
        "labels": dict(labels),
        "options": {
            "com.docker.network.bridge.enable_icc": "false",
            "com.docker.network.bridge.enable_ip_masquerade": "true" if egress == "open" else "false",
        },
    }


def host_arguments(spec: SandboxSpec, network_id: str, publish_ip: str, host_cpus: int) -> dict[str, Any]:
    """Arguments of `create_host_config`: limits, loopback ports, no new privileges."""
    limits = spec.limits
    memory = limits.memory_mib * 1024 * 1024
    arguments: dict[str, Any] = {
        "network_mode": network_id,
        "port_bindings": {f"{port}/tcp": (publish_ip, None) for port in spec.ports},
        "security_opt": ["no-new-privileges"],
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
    """The status behind Docker's word for a container's state."""
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
    """Creation time of an inspected container (Docker writes nanoseconds, Python reads microseconds)."""
    return datetime.fromisoformat(details["Created"].replace("Z", "")[:26]).replace(tzinfo=UTC)


def declared_ports(details: Mapping[str, Any]) -> set[int]:
    """Ports that the container was created with, running or not."""
    return {int(name.partition("/")[0]) for name in details["HostConfig"].get("PortBindings") or {}}


def host_port(details: Mapping[str, Any], port: int) -> int | None:
    """The host's port behind a guest's port; None while the container does not run."""
    bindings = (details["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp")
    return int(bindings[0]["HostPort"]) if bindings else None


def why_stopped(details: Mapping[str, Any], log: bytes) -> str:
    """For people: how the container ended and what it said last."""
    state = details["State"]
    memory = ", out of memory" if state.get("OOMKilled") else ""
    said = log.decode(errors="replace").strip()[-2000:]
    error = f", {state['Error']}" if state.get("Error") else ""
    end = f"{state['Status']} with code {state.get('ExitCode')}{memory}{error}"
    return f"the container {end}; its last output: {said or '(none)'}"


def explain(error: BaseException) -> str:
    """Docker's own words for what went wrong."""
    text = getattr(error, "explanation", None) or str(error)
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    with contextlib.suppress(ValueError, TypeError, KeyError):
        text = json.loads(text)["message"]
    return f"{type(error).__name__}: {text}"
