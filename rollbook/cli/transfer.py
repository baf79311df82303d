"""`export`: a batch as files for trainers and evaluators."""

from pathlib import Path
from typing import Annotated

import typer

from models.gym_results import ImportedRow, is_not_terminal, read_row
from models.outcome import RewardMode
from rollbook.artifacts import ArtifactStore
from rollbook.cli.command import AsJson, BatchArgument, finish, name_of, read_json_lines
from rollbook.cli.connections import open_ledger, settings
from rollbook.cli.out import is_terminal, note, print_json, say, several
from rollbook.cli.submit import read_batch_id
from rollbook.config.connections import temporal_connect_config
from rollbook.config.settings import Settings
from rollbook.errors import ConfigError, InvalidInput
from rollbook.export.gym import export_gym
from rollbook.export.training import Format, export_training
from rollbook.ledger.imports import Source

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
        config = settings()
        target = (out or Path(f"{batch}.training.{format}")).absolute()
        async with open_ledger(config) as ledger:
            done = await export_training(
                ledger,
                ArtifactStore.open(config.artifacts),
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
        config = settings()
        target = (out or Path(f"{batch}.gym.jsonl")).absolute()
        async with open_ledger(config) as ledger:
            done = await export_gym(
                ledger, ArtifactStore.open(config.artifacts), batch, target, partial=partial, progress=_progress
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


imports = typer.Typer(no_args_is_help=True, help="Import results that ran elsewhere.")


@imports.callback()
def _group() -> None:
    """Import results that ran elsewhere."""


@imports.command("legacy")
def import_legacy(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines, one result each; - for standard input.")],
    batch_id: Annotated[str, typer.Option("--batch-id", help="Id of the batch that is made.")],
    task_set: Annotated[str, typer.Option("--task-set", help="The registered set that holds the tasks.")],
    reward_mode: Annotated[RewardMode, typer.Option("--reward-mode", help="How their rewards follow from scores.")] = (
        "binary"
    ),
    model: Annotated[str | None, typer.Option("--model", help="Name of the model that played.")] = None,
    note: Annotated[str, typer.Option("--note", help="Free text, shown with the batch.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check the rows, import nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Import results of NeMo Gym's OSWorld environment: all rows or none. The same file again changes nothing."""

    async def work() -> int:
        config = settings()
        raw, sha256 = read_json_lines(file)
        results, beside = _results(file, raw, reward_mode)
        source = Source(
            batch_id=read_batch_id(batch_id),
            deployment_id=config.deployment_id,
            namespace=_namespace(config),
            task_set=task_set,
            reward_mode=reward_mode,
            sha256=sha256,
            rows=list(results.values()),
            lines=list(results),
            model=model,
            note=note,
        )
        added = 0
        if not dry_run:
            async with open_ledger(config) as ledger:
                keep = ArtifactStore.open(config.artifacts).put
                added = (await ledger.import_results(source, keep)).added
        _tell(source, beside, added, dry_run, as_json)
        return 0

    finish(work())


def _namespace(config: Settings) -> str:
    """The namespace of the batches that run here; an import needs no Temporal, so none may be known."""
    try:
        return temporal_connect_config(config).get("namespace", "default")
    except ConfigError:
        return "default"


def _results(file: str, raw: dict[int, object], reward_mode: RewardMode) -> tuple[dict[int, ImportedRow], int]:
    """The results by their line, and the number of attempts that are not a rollout's result."""
    rows: dict[int, ImportedRow] = {}
    for line, row in raw.items():
        try:
            if not is_not_terminal(row):
                rows[line] = read_row(row, reward_mode)
        except ValueError as error:
            raise InvalidInput(f"{name_of(file)}: line {line}: {error}") from error
    if not rows:
        beside = f", only {several(len(raw), 'row')} of attempts beside one" if raw else ""
        raise InvalidInput(f"{name_of(file)}: holds no result{beside}")
    return rows, len(raw) - len(rows)


def _tell(source: Source, beside: int, added: int, dry_run: bool, as_json: bool) -> None:
    admitted = sum(row.admitted for row in source.rows)
    state = "checked" if dry_run else "imported" if added else "already imported"
    numbers = {
        "planned": len(source.rows),
        "admitted": admitted,
        "masked": len(source.rows) - admitted,
        "skipped": beside,
    }
    if as_json:
        print_json({"batch_id": source.batch_id, "state": state, **numbers})
        return
    say(f"{source.batch_id} {state}: {several(len(source.rows), 'rollout')}, {admitted} admitted")
    if beside:
        say(f"  {several(beside, 'row')} skipped: attempts beside a result (_ng_failure_terminal is false)")
    if not dry_run:
        say(f"  rollbook audit {source.batch_id}")
