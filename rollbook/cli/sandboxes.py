"""`sandboxes`: desktops of this deployment, as the ledger's leases and the providers see them."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from rollbook.cli.aio import finish
from rollbook.cli.desktops import Desktop, classify_desktops
from rollbook.cli.opening import open_ledger, settings
from rollbook.cli.options import AsJson
from rollbook.cli.out import duration, print_json, print_table, say
from rollbook.cli.state import age_s
from rollbook.config.settings import Settings
from rollbook.ledger import Ledger
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, SandboxProvider, remove_sandbox
from rollbook.sandboxes.registry import opened_providers

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
    found = settings()
    async with open_ledger(found) as ledger, opened_providers(found) as providers:
        desktops = await survey(found, ledger, providers)
    if as_json:
        print_json([asdict(desktop) for desktop in desktops])
    elif desktops:
        _print(desktops)
    else:
        say(f"deployment {found.deployment_id} has no desktop")
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
    found = settings()
    async with open_ledger(found) as ledger, opened_providers(found) as providers:
        desktops = await survey(found, ledger, providers)
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


async def survey(found: Settings, ledger: Ledger, providers: dict[str, SandboxProvider]) -> list[Desktop]:
    """Leases and desktops together. A listing that fails ends the command: nothing is concluded from it."""
    # the listing comes first: a desktop that is made after it cannot look like one without a lease
    listed = {name: await p.list({LABEL_DEPLOYMENT: found.deployment_id}) for name, p in providers.items()}
    leases = {lease.sandbox_key: lease for lease in await ledger.live_sandboxes(found.deployment_id)}
    return classify_desktops(listed, leases, datetime.now(UTC))
