"""`sandboxes`: desktops of this deployment, as the ledger's leases and the providers see them."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from rollbook.cli.batches import age_s
from rollbook.cli.command import AsJson, finish
from rollbook.cli.connections import open_ledger, settings
from rollbook.cli.out import duration, print_json, print_table, say
from rollbook.config.settings import Settings
from rollbook.ledger import Ledger
from rollbook.ledger.records import Lease
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, LABEL_ROLLOUT, SandboxInfo, SandboxProvider, remove_sandbox
from rollbook.sandboxes.registry import opened_providers

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


sandboxes = typer.Typer(no_args_is_help=True, help="List and reap desktops of this deployment.")


@sandboxes.command("ls")
def list_sandboxes(as_json: AsJson = False) -> None:
    """List desktops and leases."""
    finish(_list(as_json))


@sandboxes.command("reap")
def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Also those that this ledger does not know, after ten minutes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove desktops whose attempt has ended. The Janitor does it too; use this to remove them immediately."""
    finish(_reap(dry_run, unknown, as_json))


async def _list(as_json: bool) -> int:
    config = settings()
    async with open_ledger(config) as ledger, opened_providers(config) as providers:
        desktops = await survey(config, ledger, providers)
    if as_json:
        print_json([asdict(desktop) for desktop in desktops])
    elif desktops:
        _print(desktops)
    else:
        say(f"deployment {config.deployment_id} has no desktop")
    return 0


def _print(desktops: list[Desktop]) -> None:
    cells = [
        (
            (desktop.sandbox_id or "-")[:12],
            desktop.provider,
            desktop.status,
            desktop.verdict,
            desktop.why,
            desktop.rollout_key,
            desktop.attempt_index,
            duration(age_s(desktop.created_at)),
        )
        for desktop in desktops
    ]
    print_table(("SANDBOX", "PROVIDER", "STATUS", "VERDICT", "WHY", "ROLLOUT", "ATTEMPT", "AGE"), cells)


async def _reap(dry_run: bool, unknown: bool, as_json: bool) -> int:
    config = settings()
    async with open_ledger(config) as ledger, opened_providers(config) as providers:
        desktops = await survey(config, ledger, providers)
        verdicts = {"orphan", "unknown"} if unknown else {"orphan"}
        unneeded = [desktop for desktop in desktops if desktop.verdict in verdicts]
        for desktop in [] if dry_run else unneeded:
            await _remove(ledger, providers[desktop.provider], desktop)
    if as_json:
        print_json({"dry_run": dry_run, "removed": [asdict(desktop) for desktop in unneeded]})
    else:
        for desktop in unneeded:
            word = "would remove" if dry_run else "removed"
            say(f"{word} {(desktop.sandbox_id or desktop.sandbox_key)[:12]} ({desktop.rollout_key}): {desktop.why}")
        say(f"{len(unneeded)} of {len(desktops)} desktops {'would be ' if dry_run else ''}removed")
    return 0


async def _remove(ledger: Ledger, provider: SandboxProvider, desktop: Desktop) -> None:
    await remove_sandbox(provider, desktop)
    await ledger.sandbox_stopped(desktop.sandbox_key, reason=f"reaped by hand: {desktop.why}")


async def survey(config: Settings, ledger: Ledger, providers: dict[str, SandboxProvider]) -> list[Desktop]:
    """Leases and desktops together. A listing that fails ends the command: nothing is concluded from it."""
    # the listing comes first: a desktop that is made after it cannot look like one without a lease
    listed = {name: await p.list({LABEL_DEPLOYMENT: config.deployment_id}) for name, p in providers.items()}
    leases = {lease.sandbox_key: lease for lease in await ledger.live_sandboxes(config.deployment_id)}
    return classify_desktops(listed, leases, datetime.now(UTC))
