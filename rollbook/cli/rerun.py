"""`rerun`: ask for final rollouts to run again, then see that the batch runs."""

import asyncio
import time
from typing import Annotated, Any

import typer
from temporalio.client import Client

from rollbook.cli.batches import Launch, await_registration, life_of, start_batch, state_of
from rollbook.cli.command import OK, AsJson, BatchArgument, Failed, Reason, finish
from rollbook.cli.connections import Links, connect, open_ledger, open_reader, redact_reason, settings
from rollbook.cli.decide import whoami
from rollbook.cli.out import print_json, say, several
from rollbook.cli.status import follow
from rollbook.config.settings import Settings
from rollbook.errors import InvalidInput
from rollbook.ledger.admission import Selector
from rollbook.ledger.reader import BatchRow, Reader
from rollbook.policies.registry import pinned_spec

TAKEN_UP_S = 60.0
POLL_S = 0.2


def rerun(
    batch: BatchArgument,
    reason: Reason,
    masked: Annotated[bool, typer.Option("--masked", help="Every rollout that is not admitted.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Those masked by a failure outside the policy, cancelled ones excepted.")
    ] = False,
    under_pressure: Annotated[
        bool,
        typer.Option("--under-pressure", help="Those set up or evaluated on a host under pressure; see the audit."),
    ] = False,
    rollout: Annotated[list[str] | None, typer.Option("--rollout", help="This one; may be repeated.")] = None,
    supersede: Annotated[
        bool, typer.Option("--supersede", help="Also run admitted ones again; they count as superseded.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch until every rollout is final.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run final rollouts again. Nothing is deleted: the old attempts stay, and the request with its reason."""
    if sum((masked, failed, under_pressure, bool(rollout))) != 1:
        raise InvalidInput("rerun: give one of --masked, --failed, --under-pressure and --rollout KEY")
    named: Selector = "masked" if masked else "failed" if failed else "under pressure"

    async def work() -> int:
        config = settings()
        client = await connect(config)
        async with open_reader(config) as reader, open_ledger(config) as ledger:
            row = await reader.batch(batch)
            keys = [await reader.find_rollout(part_of_key) for part_of_key in rollout or []]
            which = keys or named
            waiting = await ledger.request_rerun(
                batch, which, reason=redact_reason(config, reason), requested_by=whoami(), supersede=supersede
            )
            if waiting:
                await relaunch(client, reader, config, row)
            done = await _outcome(reader, config, batch, waiting)
        if not as_json:
            _tell(batch, waiting)
        code = OK
        if watch and waiting:
            ended = await follow(config, batch, quiet=as_json)
            code = ended.code
            done |= ended.as_json()
        if as_json:
            print_json(done)
        return code

    finish(work())


async def _outcome(reader: Reader, config: Settings, batch_id: str, waiting: list[str]) -> dict[str, Any]:
    """The shape of `submit --json`, and which rollouts run again."""
    row, counts = await reader.batch(batch_id), await reader.counts(batch_id)
    state = "started" if waiting else state_of(row, counts, None)
    link = Links.of(config).workflow(batch_id)
    return {"batch_id": batch_id, "state": state, **counts.model_dump(), "ui": link, "rerun": waiting}


def _tell(batch_id: str, waiting: list[str]) -> None:
    if waiting:
        say(f"{batch_id}: {several(len(waiting), 'rollout')} to run again")
        say(f"  rollbook watch {batch_id}")
    else:
        say(f"{batch_id}: nothing to run again")


async def relaunch(client: Client, reader: Reader, config: Settings, row: BatchRow) -> None:
    """See that the batch's workflow picks up waiting rows: it runs on, or it is started with its stored spec.

    A workflow that was about to end when the rows became waiting may end without them: then it is started again.
    """
    ends_at = time.monotonic() + TAKEN_UP_S
    while time.monotonic() < ends_at:
        launch = await start_batch(client, row.batch_id, pinned_spec(row), config.task_queue_orchestrate)
        if not launch.already_running:
            await _registered(client, reader, launch)
            return
        if await _taken_up(client, reader, row.batch_id, ends_at):
            return
    raise Failed(f"{row.batch_id}: the rollouts wait, but no worker has taken them up within {TAKEN_UP_S:.0f} s")


async def _registered(client: Client, reader: Reader, launch: Launch) -> None:
    if await await_registration(client, reader, launch, TAKEN_UP_S) == "not taken up":
        raise Failed(
            f"{launch.batch_id} was started, but no worker took it up within {TAKEN_UP_S:.0f} s (`rollbook ps`)"
        )


async def _taken_up(client: Client, reader: Reader, batch_id: str, ends_at: float) -> bool:
    """True if a running workflow knows of the waiting rows; False once it has ended."""
    while time.monotonic() < ends_at:
        if await life_of(client, batch_id) != "running":
            return False
        batch, counts = await reader.batch(batch_id), await reader.counts(batch_id)
        # a full window or a pause keeps rows waiting; the workflow cannot end while they do
        if batch.paused or counts.waiting == 0 or counts.running >= batch.concurrency:
            return True
        await asyncio.sleep(POLL_S)
    return False
