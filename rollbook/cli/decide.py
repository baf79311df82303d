"""`admit` and `mask`: decisions after the fact. They are appended; facts, score and reward never change."""

import getpass
from dataclasses import asdict
from typing import Annotated

import typer

from models.admission import LEGACY_POLICY, POLICIES, RECONCILED_POLICY, AdmissionDecision, Scope
from rollbook.cli.command import AsJson, BatchArgument, Reason, RolloutArgument, finish
from rollbook.cli.connections import open_ledger, open_reader, redact_reason, settings
from rollbook.cli.out import print_json, say, several
from rollbook.errors import InvalidInput
from rollbook.ledger.admission import PolicyToReapply, ReappliedPolicy

MANUAL_POLICY = "rollbook-manual-v1"
"""Policy id of decisions that a person made with this command."""

PolicyId = Annotated[str, typer.Option("--policy-id", help="The rule by which you decide.")]
ForScope = Annotated[Scope, typer.Option("--scope", help="May it be counted, or may it be trained on.")]


def admit(
    rollout: RolloutArgument,
    reason: Reason,
    policy_id: PolicyId = MANUAL_POLICY,
    scope: ForScope = Scope.RUNTIME,
    as_json: AsJson = False,
) -> None:
    """Admit a rollout's selected attempt. Only an evaluated one can be admitted."""
    finish(_decide(rollout, True, reason, policy_id, scope, as_json))


def mask(
    rollout: RolloutArgument,
    reason: Reason,
    policy_id: PolicyId = MANUAL_POLICY,
    scope: ForScope = Scope.RUNTIME,
    as_json: AsJson = False,
) -> None:
    """Mask a rollout's selected attempt: it stays on record and is not counted."""
    finish(_decide(rollout, False, reason, policy_id, scope, as_json))


async def _decide(part_of_key: str, admitted: bool, reason: str, policy_id: str, scope: Scope, as_json: bool) -> int:
    _refuse_rules(policy_id)
    config = settings()
    reason = redact_reason(config, reason)
    async with open_reader(config) as reader:
        key = await reader.find_rollout(part_of_key)
    decision = AdmissionDecision(scope=scope, policy_id=policy_id, admitted=admitted, reason=reason)
    async with open_ledger(config) as ledger:
        attempt = await ledger.decide_admission(key, decision, decided_by=whoami())
    if as_json:
        print_json(
            {
                "rollout_key": key,
                "attempt_index": attempt.attempt_index,
                **decision.model_dump(),
                "decided_by": whoami(),
            }
        )
    else:
        say(f"{key} attempt {attempt.attempt_index} is {'admitted' if admitted else 'masked'} ({scope}): {reason}")
    return 0


def _refuse_rules(policy_id: str) -> None:
    """A decision by hand does not bear the name of a rule that decides by itself."""
    if policy_id.strip().casefold() in (*POLICIES, LEGACY_POLICY, RECONCILED_POLICY):
        raise InvalidInput(
            f"--policy-id: {policy_id} is a rule that Rollbook applies itself, and this is a decision by hand; leave "
            f"the option out ({MANUAL_POLICY}) or name a rule of your own. `rollbook redecide BATCH` decides by a rule "
            f"of {', '.join(POLICIES)}"
        )


def whoami() -> str:
    """The user who runs the command, for decisions that are kept."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "unknown"


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
        config = settings()
        async with open_reader(config) as reader:
            await reader.batch(batch)
        rule = PolicyToReapply(policy_id, redact_reason(config, reason), whoami(), override_manual)
        async with open_ledger(config) as ledger:
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
