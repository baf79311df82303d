"""`evidence`: what a rollout's model saw, said and did; and the proof that it is so."""

from typing import Annotated

import typer

from rollbook.artifacts import ArtifactStore
from rollbook.cli.aio import finish
from rollbook.cli.failures import NOT_TRUE, OK
from rollbook.cli.opening import open_ledger, open_reader, settings
from rollbook.cli.options import AsJson, RolloutArgument
from rollbook.cli.out import clean, print_json, print_table, say, several
from rollbook.evidence.exact import exact_envelope
from rollbook.evidence.load import load_calls
from rollbook.evidence.trajectory import semantic_trajectory
from rollbook.evidence.verify import Proof, verify
from rollbook.ledger.recorded import Recorded
from rollbook.settings import Settings

evidence = typer.Typer(help="What the model saw, said and did.", no_args_is_help=True)

AttemptOption = Annotated[int | None, typer.Option("--attempt", help="The selected one by default.", min=1)]


@evidence.command("verify")
def verify_rollout(rollout: RolloutArgument, attempt: AttemptOption = None, as_json: AsJson = False) -> None:
    """Render every prompt again from the stored turns, read every reply again, compare. Exit code 1 if not equal."""

    async def work() -> int:
        found = settings()
        proof = await verify(await _recorded(found, rollout, attempt), ArtifactStore.open(found.artifacts))
        print_json(proof.to_json()) if as_json else _print(proof)
        return OK if proof.ok else NOT_TRUE

    finish(work())


@evidence.command("trace")
def trace(rollout: RolloutArgument, attempt: AttemptOption = None) -> None:
    """Print the semantic trajectory as JSON, and the exact envelope when every call is complete."""

    async def work() -> int:
        found = settings()
        loaded = await load_calls(await _recorded(found, rollout, attempt), ArtifactStore.open(found.artifacts))
        print_json(semantic_trajectory(loaded) | {"exact": exact_envelope(loaded)})
        return OK

    finish(work())


async def _recorded(found: Settings, rollout: str, attempt: int | None) -> Recorded:
    async with open_reader(found) as reader:
        key = await reader.find_rollout(rollout)
    async with open_ledger(found) as ledger:
        return await ledger.recorded(key, attempt)


def _print(proof: Proof) -> None:
    if proof.mismatches:
        cells = [(one.step, one.parse_attempt, one.what, clean(one.detail, 300)) for one in proof.mismatches]
        print_table(("STEP", "CALL", "WHAT", "DIFFERENCE"), cells)
        say()
    verdict = "evidence verified" if proof.ok else f"evidence refuted: {several(len(proof.mismatches), 'mismatch')}"
    say(
        f"{proof.rollout_key} attempt {proof.attempt_index}: {verdict}; {several(proof.calls, 'call')}, "
        f"{proof.prompts_equal} prompts rendered again, {proof.replies_equal} replies read again, "
        f"{proof.images_equal} images equal"
    )
