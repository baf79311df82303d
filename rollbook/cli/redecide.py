"""`redecide`: a whole batch decided anew under a named policy. Decisions are appended; results never change."""

from dataclasses import asdict
from typing import Annotated

import typer

from models.admission import POLICIES
from rollbook.cli.aio import finish
from rollbook.cli.decide import whoami
from rollbook.cli.opening import kept, open_ledger, open_reader, settings
from rollbook.cli.options import AsJson, BatchArgument, Reason
from rollbook.cli.out import print_json, say, several
from rollbook.ledger.admission import PolicyToReapply, ReappliedPolicy

Policy = Annotated[str, typer.Option("--policy-id", help=f"One of {', '.join(POLICIES)}.")]


def redecide(
    batch: BatchArgument,
    policy_id: Policy,
    reason: Reason,
    override_manual: Annotated[
        bool, typer.Option("--override-manual", help="Also where a person decided; their decisions stay otherwise.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would change, decide nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Decide the selected attempts of a batch anew. Earlier decisions stay on record; facts and scores never change."""

    async def work() -> int:
        found = settings()
        async with open_reader(found) as reader:
            await reader.batch(batch)
        rule = PolicyToReapply(policy_id, kept(found, reason), whoami(), override_manual)
        async with open_ledger(found) as ledger:
            done = await ledger.reapply_policy(batch, rule, dry_run=dry_run)
        if as_json:
            print_json({"batch_id": batch, "dry_run": dry_run, **asdict(done)})
        else:
            _tell(batch, done, dry_run)
        return 0

    finish(work())


def _tell(batch: str, done: ReappliedPolicy, dry_run: bool) -> None:
    words = "would be decided" if dry_run else "decided"
    say(f"{batch}: {several(done.admitted + done.masked, 'rollout')} {words} by {done.policy_id} ({done.scope.value})")
    say(f"  {done.admitted} admitted, {done.masked} masked; {several(done.flips, 'decision')} changed")
    for line in done.flipped:
        say(f"  {line}")
    if done.flips > len(done.flipped):
        say(f"  … and {done.flips - len(done.flipped)} more")
    for number, why in (
        (done.unchanged, "decided so before"),
        (done.kept_by_hand, "decided by hand (--override-manual)"),
        (done.kept_imported, "imported, without the facts that a policy needs"),
    ):
        if number:
            say(f"  {number} left alone: {why}")
