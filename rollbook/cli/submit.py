"""`submit`: one spec, one batch. Repeating it is harmless."""

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from temporalio.client import Client

from models.batch import BatchResult
from models.identity import BATCH_ID
from models.spec import BatchSpec, read_spec
from rollbook.cli.aio import finish
from rollbook.cli.compare import (
    never_trained_on,
    operational_difference,
    require_same_contract,
    require_same_selection,
    samples_stay,
)
from rollbook.cli.failures import NOT_TRUE, OK, Failed
from rollbook.cli.files import name_of, read_json
from rollbook.cli.launch import Launch, as_input, await_registration, life_of, result_of, start_batch
from rollbook.cli.links import Links
from rollbook.cli.opening import connect, open_ledger, open_reader, settings
from rollbook.cli.options import AsJson
from rollbook.cli.out import note, print_json, say, several
from rollbook.cli.resolve import resolve
from rollbook.cli.state import rerun_masked
from rollbook.cli.watch import follow
from rollbook.config.settings import Settings
from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger
from rollbook.ledger.reader import Reader

REGISTRATION_S = 60.0
"""How long `submit` waits for a worker to register the batch."""

ALREADY = "already complete"
"""The workflow's word for a launch that found nothing to run."""

Outcome = dict[str, Any]


def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The batch spec, one JSON object; - for standard input.")],
    batch_id: Annotated[
        str | None, typer.Option("--batch-id", help="Default: the file's name and the time. Use your own to resume.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch until every rollout is final.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved spec and its digest, start nothing.")
    ] = (False),
    as_json: AsJson = False,
) -> None:
    """Start a batch. The same spec under the same id resumes it; another contract is refused with the difference."""

    async def work() -> int:
        spec = load_spec(file)
        chosen = read_batch_id(batch_id) if batch_id else default_batch_id(file)
        found = settings()
        if dry_run:
            print_json(await resolve(found, chosen, spec))
            return 0
        if told := never_trained_on(spec):
            note(told)
        done = await launch(found, chosen, spec)
        if not as_json:
            tell(done)
        code = OK
        if watch and done["state"] in ("started", "running"):
            ended = await follow(found, chosen, quiet=as_json)
            code = ended.code
            done |= ended.as_json()
        elif watch and done["state"] not in ("complete", ALREADY):
            code = NOT_TRUE
        if as_json:
            print_json(done)
        return code

    finish(work())


def load_spec(file: str) -> BatchSpec:
    """Read and validate a spec; raises InvalidInput that names the fields."""
    from rollbook.sandboxes.registry import provider_kind  # slow to import

    raw = read_json(file)
    try:
        spec = read_spec(raw)
        provider_kind(spec.desktop.provider)
    except (ValueError, InvalidInput) as error:
        raise InvalidInput(f"{name_of(file)}: {error}") from error
    return spec


def default_batch_id(file: str) -> str:
    """`<name of the file>-<date>-<time>`, UTC."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(file).stem).strip("-._") if file != "-" else "batch"
    return f"{stem or 'batch'}-{datetime.now(UTC):%m%d-%H%M%S}"


def read_batch_id(given: str) -> str:
    """A batch id that people chose; raises InvalidInput."""
    if not BATCH_ID.match(given) or len(given) > 128:
        raise InvalidInput(
            f"--batch-id: {given!r}: letters, digits, '_', '.' and '-' only, at most 128, the first a letter or digit"
        )
    return given


async def launch(found: Settings, batch_id: str, spec: BatchSpec) -> Outcome:
    """Start the batch, or find that it runs or is complete; raises InvalidInput or SpecConflict with the reason."""
    client = await connect(found)
    async with open_ledger(found) as ledger, open_reader(found) as reader:
        life = await life_of(client, batch_id)
        if known := await reader.known_batch(batch_id):
            await require_same_contract(ledger, known, spec)
            if told := samples_stay(await reader.planned(batch_id), spec):
                note(told)
            if life == "running":
                return await _running(ledger, reader, found, batch_id, spec)
        started = await start_batch(client, batch_id, as_input(spec), found.task_queue_orchestrate)
        if started.already_running:
            return await _running(ledger, reader, found, batch_id, spec)
        answer = await await_registration(client, reader, started, REGISTRATION_S)
        return await _outcome(client, reader, found, started, answer)


async def _running(ledger: Ledger, reader: Reader, found: Settings, batch_id: str, spec: BatchSpec) -> Outcome:
    known = await reader.known_batch(batch_id)
    if known is None:
        raise Failed(
            f"workflow {batch_id} is running, but the ledger has no such batch (yet): `rollbook status {batch_id}`"
        )
    await require_same_contract(ledger, known, spec)
    await require_same_selection(ledger, reader, known, spec)
    for line in operational_difference(known, spec):
        note(
            f"warning: {batch_id} goes on with its own setting ({line}); `rollbook set-concurrency` changes concurrency"
        )
    return await _report(reader, found, batch_id, "running")


async def _begun(client: Client, reader: Reader, started: Launch) -> str:
    """`started`, or the workflow's own word when it has nothing to do and ends at once."""
    counts = await reader.counts(started.batch_id)
    if counts.waiting or counts.running:
        return "started"
    with suppress(TimeoutError):
        async with asyncio.timeout(REGISTRATION_S):
            return (await result_of(client, started.batch_id, started.run_id)).state
    return "started"


async def _outcome(
    client: Client, reader: Reader, found: Settings, started: Launch, answer: BatchResult | str
) -> Outcome:
    if isinstance(answer, BatchResult):
        return await _report(reader, found, started.batch_id, answer.state)
    if answer == "registered":
        return await _report(reader, found, started.batch_id, await _begun(client, reader, started))
    raise Failed(
        f"{started.batch_id} was started, but no worker took it up within {REGISTRATION_S:.0f} s; it will run as soon "
        f"as one polls {found.task_queue_orchestrate!r} (`rollbook ps`)"
    )


async def _report(reader: Reader, found: Settings, batch_id: str, state: str) -> Outcome:
    counts = await reader.counts(batch_id)
    if state == ALREADY and (await reader.batch(batch_id)).cancelling:
        state = "cancelled"  # nothing was left to run because it was cancelled: that is not complete
    return {"batch_id": batch_id, "state": state, **counts.model_dump(), "ui": Links.of(found).workflow(batch_id)}


def tell(done: Outcome) -> None:
    """What a launch came to, for people."""
    batch_id, planned = done["batch_id"], done["planned"]
    final = done["admitted"] + done["masked"]
    words = {
        "started": f"started: {several(planned, 'rollout')} planned, {final} final",
        "running": f"is already running: {several(planned, 'rollout')} planned, {final} final",
        ALREADY: f"already complete: {planned} of {planned} rollouts final",
        "cancelled": f"is cancelled: {planned} of {planned} rollouts final, {done['masked']} masked; nothing to run",
    }
    say(f"{batch_id} {words.get(done['state'], done['state'])}")
    if done["ui"]:
        say(f"  {done['ui']}")
    if done["state"] in ("started", "running"):
        say(f"  rollbook watch {batch_id}")
    if done["state"] == "cancelled":
        say(f"  {rerun_masked(batch_id)}")
