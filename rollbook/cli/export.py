"""`export`: a batch as files for trainers and evaluators."""

from pathlib import Path
from typing import Annotated

import typer

from rollbook.artifacts import ArtifactStore
from rollbook.cli.aio import finish
from rollbook.cli.opening import open_ledger, settings
from rollbook.cli.options import AsJson, BatchArgument
from rollbook.cli.out import is_terminal, note, print_json, say
from rollbook.export.gym import export_gym
from rollbook.export.training import Format, export_training

export = typer.Typer(help="Export a batch as files; the same batch gives the same bytes.", no_args_is_help=True)

Out = Annotated[Path | None, typer.Option("--out", help="The file to write. Default: named after the batch.")]
Partial = Annotated[bool, typer.Option("--partial", help="Export what is final although the batch is not whole.")]
RowFormat = Annotated[Format, typer.Option("--format", help="Format of the rows; parquet needs the extra `export`.")]


@export.command()
def training(
    batch: BatchArgument,
    format: RowFormat = "jsonl",
    out: Out = None,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """One row per model call: tokens, loss spans, group statistics, both admissions. Masked rows are there, marked."""

    async def work() -> int:
        found = settings()
        target = (out or Path(f"{batch}.training.{format}")).absolute()
        async with open_ledger(found) as ledger:
            done = await export_training(
                ledger,
                ArtifactStore.open(found.artifacts),
                batch,
                target,
                format=format,
                partial=partial,
                progress=_progress,
            )
        if as_json:
            print_json(done)
        else:
            say(f"{target}: {done['rows']} rows of {done['final']} rollouts ({done['masked']} masked)")
            say(f"sha256 {done['sha256']}")
        return 0

    finish(work())


@export.command()
def gym(batch: BatchArgument, out: Out = None, partial: Partial = False, as_json: AsJson = False) -> None:
    """NeMo-Gym's files: rollouts, failures, materialised inputs, aggregate metrics."""

    async def work() -> int:
        found = settings()
        target = (out or Path(f"{batch}.gym.jsonl")).absolute()
        async with open_ledger(found) as ledger:
            done = await export_gym(
                ledger, ArtifactStore.open(found.artifacts), batch, target, partial=partial, progress=_progress
            )
        if as_json:
            print_json(done)
        else:
            say(f"{target}: {done['results']} results, {done['failures']} failures, {done['inputs']} inputs")
        return 0

    finish(work())


def _progress(done: int, of: int) -> None:
    if is_terminal() and (done % 50 == 0 or done == of):
        note(f"{done} of {of} rollouts")
