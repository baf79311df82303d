"""Classification of desktops by the ledger's leases and the providers' listings. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rollbook.ledger.records import Lease
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, LABEL_ROLLOUT, SandboxInfo

UNKNOWN_AGE_S = 600.0
"""A desktop without a lease in this ledger is left alone for so long: its row may be on its way."""

Verdict = Literal["in use", "orphan", "unknown", "unknown, young", "lost"]


@dataclass(frozen=True)
class Desktop:
    """A desktop or a lease, and whether an open attempt needs it."""

    sandbox_key: str
    deployment_id: str
    sandbox_id: str | None
    provider: str
    status: str
    rollout_key: str
    attempt_index: int | None
    created_at: datetime
    verdict: Verdict
    why: str


def classify_desktops(listed: dict[str, list[SandboxInfo]], leases: dict[str, Lease], now: datetime) -> list[Desktop]:
    """Compare listings of providers with the leases of the ledger. Pure."""
    desktops = [_classify(name, info, leases.get(info.key), now) for name, infos in listed.items() for info in infos]
    seen = {desktop.sandbox_key for desktop in desktops}
    for lease in leases.values():
        if lease.sandbox_key not in seen and lease.provider in listed:
            desktops.append(_without_desktop(lease))
    return sorted(desktops, key=lambda desktop: desktop.created_at)


def _classify(provider: str, info: SandboxInfo, lease: Lease | None, now: datetime) -> Desktop:
    facts: dict[str, Any] = {
        "sandbox_key": info.key,
        "deployment_id": info.labels.get(LABEL_DEPLOYMENT, ""),
        "sandbox_id": info.sandbox_id,
        "provider": provider,
        "status": info.status.value,
        "rollout_key": info.labels.get(LABEL_ROLLOUT, "") if lease is None else lease.rollout_key,
        "attempt_index": None if lease is None else lease.attempt_index,
        "created_at": info.created_at,
    }
    if lease is None:
        if (now - info.created_at).total_seconds() < UNKNOWN_AGE_S:
            return Desktop(**facts, verdict="unknown, young", why="no live lease; it may be on its way")
        return Desktop(**facts, verdict="unknown", why="no live lease in this ledger")
    if not lease.attempt_open:
        return Desktop(**facts, verdict="orphan", why="its attempt has ended")
    return Desktop(**facts, verdict="in use", why="lease expired" if lease.lease_expired else "its attempt is open")


def _without_desktop(lease: Lease) -> Desktop:
    return Desktop(
        sandbox_key=lease.sandbox_key,
        deployment_id=lease.deployment_id,
        sandbox_id=lease.sandbox_id,
        provider=lease.provider,
        status="gone",
        rollout_key=lease.rollout_key,
        attempt_index=lease.attempt_index,
        created_at=lease.created_at,
        verdict="lost"
        if lease.attempt_open and lease.state == "running"
        else "in use"
        if lease.attempt_open
        else "orphan",
        why="the provider has no such desktop" if lease.state == "running" else "it was intended, not made (yet)",
    )
