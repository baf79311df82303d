"""`pause`, `resume`, `stop`, `set-concurrency`, `cancel`: signals to a running batch, as the plain CLI sends them."""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from models import names
from models.batch import Counts
from rollbook.artifacts import ArtifactStore
from rollbook.cli.batches import control_of, life_of, state_of
from rollbook.cli.command import AsJson, BatchArgument, Failed, finish
from rollbook.cli.connections import connect, open_ledger, open_reader, redact_reason, settings
from rollbook.cli.out import note, print_json, say
from rollbook.config.settings import Settings
from rollbook.errors import InvalidInput
from rollbook.ledger.reader import BatchRow, Reader

TAKEN_UP_S = 20.0
"""Time that a signal may take to show in the ledger; it is durable either way."""
CANCEL_S = 330.0
"""Time that a cancelled batch may take to end its episodes and close its rows."""
POLL_S = 0.2

WhyControl = Annotated[str, typer.Option("--reason", help="Why; shown with the batch.")]


def pause(
    batch: BatchArgument,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Also stand running episodes still; their deadlines stop.")
    ] = False,
    reason: WhyControl = "",
    as_json: AsJson = False,
) -> None:
    """Start nothing new. Running episodes finish; --freeze suspends them."""
    options = {"freeze": freeze, "reason": reason}
    finish(_control(batch, names.PAUSE, options, lambda row: row.paused and row.frozen == freeze, as_json))


def resume(batch: BatchArgument, reason: WhyControl = "", as_json: AsJson = False) -> None:
    """Undo `pause`."""
    finish(_control(batch, names.RESUME, {"reason": reason}, lambda row: not row.paused, as_json))


def stop(batch: BatchArgument, reason: WhyControl = "", as_json: AsJson = False) -> None:
    """Let running episodes finish, then end. Planned rollouts stay planned; submitting the spec again goes on."""
    finish(_control(batch, names.STOP, {"reason": reason}, lambda row: row.stopping, as_json))


def set_concurrency(
    batch: BatchArgument,
    number: Annotated[int, typer.Argument(min=1, max=10_000, help="Episodes that may run at once.")],
    as_json: AsJson = False,
) -> None:
    """Change how many episodes run at once."""
    options = {"concurrency": number}
    finish(_control(batch, names.SET_CONCURRENCY, options, lambda row: row.concurrency == number, as_json))


async def _control(
    batch_id: str, signal: str, options: dict[str, Any], written: Callable[[BatchRow], bool], as_json: bool
) -> int:
    config = settings()
    if options.get("reason"):
        options = options | {"reason": redact_reason(config, options["reason"])}
    client = await connect(config)
    async with open_reader(config) as reader:
        await reader.batch(batch_id)
        await _signal(client, reader, batch_id, signal, options)
        row = await _await_row(reader, batch_id, written)
        counts = await reader.counts(batch_id)
    if as_json:
        print_json({"batch_id": batch_id, "signal": signal, "taken_up": row is not None} | _shown(row, counts))
    elif row is None:
        note(
            f"note: {signal} was sent to {batch_id} and is recorded, but no worker has taken it up within "
            f"{TAKEN_UP_S:.0f} s (`rollbook ps`)"
        )
    else:
        say(f"{batch_id}: {signal} is in force; {counts.running} running, {counts.waiting} waiting")
    return 0


def _shown(row: BatchRow | None, counts: Counts) -> dict[str, Any]:
    return {"control": None if row is None else control_of(row), **counts.model_dump()}


async def _signal(client: Client, reader: Reader, batch_id: str, signal: str, options: dict[str, Any]) -> None:
    try:
        await client.get_workflow_handle(batch_id).signal(signal, options)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise Failed(await why_not_running(client, reader, batch_id)) from error
        raise


async def why_not_running(client: Client, reader: Reader, batch_id: str) -> str:
    """One line on a batch without a running workflow."""
    life = await life_of(client, batch_id)
    row, counts = await reader.batch(batch_id), await reader.counts(batch_id)
    state = state_of(row, counts, life)
    final = counts.admitted + counts.masked
    hint = "" if final == counts.planned else "; submitting the spec again under this id goes on"
    return f"batch {batch_id} is not running: {state}, {final} of {counts.planned} rollouts final{hint}"


async def _await_row(reader: Reader, batch_id: str, written: Callable[[BatchRow], bool]) -> BatchRow | None:
    ends_at = time.monotonic() + TAKEN_UP_S
    while time.monotonic() < ends_at:
        if written(row := await reader.batch(batch_id)):
            return row
        await asyncio.sleep(POLL_S)
    return None


def cancel(
    batch: BatchArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: WhyControl = "",
    wait: Annotated[bool, typer.Option(help="Wait until every row is closed.")] = True,
    as_json: AsJson = False,
) -> None:
    """End a batch permanently: running episodes are cancelled, every open rollout is closed as masked (cancelled)."""
    if not yes:
        _confirm(batch)
    finish(_cancel(batch, reason, wait, as_json))


def _confirm(batch_id: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput("cancel: confirmation required; pass --yes (stdin is not a terminal)")
    typer.confirm(f"Close every open rollout of {batch_id} as cancelled?", abort=True, err=True)


async def _cancel(batch_id: str, reason: str, wait: bool, as_json: bool) -> int:
    config = settings()
    client = await connect(config)
    async with open_reader(config) as reader:
        row = await reader.batch(batch_id)
        reason = redact_reason(config, reason) or "rollbook cancel"
        life: str = await life_of(client, batch_id)
        if life == "running":
            await client.get_workflow_handle(batch_id).cancel(reason=reason)
            life = await _await_end(client, batch_id) if wait else "running"
        else:
            counts = await reader.counts(batch_id)
            if not counts.waiting + counts.running:
                raise Failed(await why_not_running(client, reader, batch_id))
            await _close(config, client, row, reason)
            life = "canceled"
        counts = await reader.counts(batch_id)
    open_rows = counts.waiting + counts.running
    if as_json:
        print_json({"batch_id": batch_id, "closed": open_rows == 0, "workflow": life, **counts.model_dump()})
    elif wait and (life == "running" or open_rows):
        raise Failed(
            f"batch {batch_id}: {open_rows} rollouts are still open after {CANCEL_S:.0f} s; it goes on closing"
        )
    else:
        done = {"running": "is being cancelled", "canceled": "is cancelled"}.get(life, f"is {life}")
        say(f"{batch_id} {done}: {counts.admitted} admitted, {counts.masked} masked of {counts.planned} planned")
    return int(wait and open_rows > 0)


async def _close(config: Settings, client: Client, batch: BatchRow, reason: str) -> None:
    """Cancel a batch without a workflow, for instance a stopped one: close its rows, then end episodes still there."""
    async with open_ledger(config) as ledger:
        runs = await ledger.open_runs(batch.batch_id)
        keep = ArtifactStore.open(config.artifacts).put
        await ledger.close_open(batch.batch_id, reason, launch_id=batch.launch_id, keep=keep)
    for key, run_id in runs:
        with suppress(RPCError):  # it has ended; otherwise the Janitor ends it: its row is final
            await client.get_workflow_handle(key, run_id=run_id).cancel(reason=reason)


async def _await_end(client: Client, batch_id: str) -> str:
    ends_at = time.monotonic() + CANCEL_S
    while True:
        life = await life_of(client, batch_id)
        if life != "running" or time.monotonic() >= ends_at:
            return life
        await asyncio.sleep(POLL_S)
