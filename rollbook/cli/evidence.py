"""`evidence`: what a rollout's model saw, said and did; and the proof that it is so."""

from typing import Annotated

import typer

from rollbook.artifacts import ArtifactStore
from rollbook.cli.aio import finish
from rollbook.cli.failures import NOT_TRUE, OK
from rollbook.cli.opening import open_ledger, open_reader, settings
from rollbook.cli.options import AsJson, RolloutArgument
from rollbook.cli.out import clean, print_json, print_table, say, several
from rollbook.config.settings import Settings
from rollbook.evidence.exact import exact_envelope, full_envelope, trajectory_model_calls
from rollbook.evidence.load import load_calls
from rollbook.evidence.trajectory import semantic_trajectory
from rollbook.evidence.verify import Proof, verify
from rollbook.ledger.reader import RecordedAttempt

evidence = typer.Typer(help="What the model saw, said and did.", no_args_is_help=True)

FullOption = Annotated[bool, typer.Option("--full", help="With token arrays, prompts and replies of every call.")]
AttemptOption = Annotated[int | None, typer.Option("--attempt", help="The selected one by default.", min=1)]


@evidence.command("verify")
def verify_rollout(rollout: RolloutArgument, attempt: AttemptOption = None, as_json: AsJson = False) -> None:
    """Build every request again from the stored turns, read every reply again, compare.

    Exit code 1 if anything differs or could not be checked.
    """

    async def work() -> int:
        found = settings()
        proof = await verify(await _recorded(found, rollout, attempt), ArtifactStore.open(found.artifacts))
        print_json(proof.to_json()) if as_json else _print(proof)
        return OK if proof.ok else NOT_TRUE

    finish(work())


@evidence.command("trace")
def trace(rollout: RolloutArgument, attempt: AttemptOption = None, full: FullOption = False) -> None:
    """Print the semantic trajectory as JSON, and the exact envelope when every call is complete."""

    async def work() -> int:
        found = settings()
        loaded = await load_calls(await _recorded(found, rollout, attempt), ArtifactStore.open(found.artifacts))
        exact = full_envelope(loaded) if full else exact_envelope(loaded)
        partial = {"trajectory_model_calls": trajectory_model_calls(loaded)} if full and exact is None else {}
        print_json(semantic_trajectory(loaded) | {"exact": exact} | partial)
        return OK

    finish(work())


async def _recorded(found: Settings, rollout: str, attempt: int | None) -> RecordedAttempt:
    async with open_reader(found) as reader:
        key = await reader.find_rollout(rollout)
    async with open_ledger(found) as ledger:
        return await ledger.recorded(key, attempt)


def _print(proof: Proof) -> None:
    found = [*proof.mismatches, *proof.unchecked]
    if found:
        cells = [(one.step, one.parse_attempt, one.what, clean(one.detail, 300)) for one in proof.mismatches]
        cells += [
            (one.step, one.parse_attempt, one.what, f"could not check: {clean(one.detail, 280)}")
            for one in proof.unchecked
        ]
        print_table(("STEP", "CALL", "WHAT", "DIFFERENCE"), cells)
        say()
    verdict = "evidence verified"
    if proof.mismatches:
        verdict = f"evidence refuted: {several(len(proof.mismatches), 'mismatch')}"
    elif proof.unchecked:
        verdict = f"evidence not proven: {several(len(proof.unchecked), 'thing')} could not be checked"
    say(
        f"{proof.rollout_key} attempt {proof.attempt_index}: {verdict}; {several(proof.calls, 'call')}, "
        f"{proof.prompts_equal} prompts rendered again, {proof.requests_equal} requests built again, "
        f"{proof.replies_equal} replies read again, {proof.images_equal} images equal"
    )
