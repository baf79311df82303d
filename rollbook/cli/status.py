"""`status`: the roll call of all batches, or of one."""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

from models.batch import Counts
from models.contract import RecordedContract
from rollbook.cli.batches import Pulse, advice, age_s, control_of, eta_s, pulse_of, state_of
from rollbook.cli.command import FAILURE, OK, AsJson, BatchArgument, Failed, finish
from rollbook.cli.connections import Links, connect, open_reader, settings
from rollbook.cli.out import clean, console, duration, is_terminal, note, print_fields, print_json, print_table, say
from rollbook.config.settings import Settings
from rollbook.errors import ConfigError, InvalidInput
from rollbook.ledger.control import HELD
from rollbook.ledger.reader import BatchRow, Reader

COUNTS = ("planned", "waiting", "running", "admitted", "masked")


def status(
    batch: Annotated[str | None, typer.Argument(metavar="[BATCH]", help="Batch id; the newest batches by default.")] = (
        None
    ),
    limit: Annotated[int, typer.Option(min=1, help="How many batches to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the roll call: planned = admitted + masked + running + waiting."""

    async def work() -> int:
        config = settings()
        async with open_reader(config) as reader:
            if batch is None:
                await _list(config, reader, limit, as_json)
            else:
                await _one(config, reader, batch, as_json)
        return 0

    finish(work())


async def pulses(config: Settings, batch_ids: list[str]) -> dict[str, Pulse]:
    """The pulses of batch workflows; empty, with a note, where Temporal does not answer."""
    try:
        client = await connect(config)
        return {batch_id: await pulse_of(client, batch_id) for batch_id in batch_ids}
    except (Failed, ConfigError) as error:
        note(f"note: {error}")
        return {}


async def _list(config: Settings, reader: Reader, limit: int, as_json: bool) -> None:
    rows = [(row, await reader.counts(row.batch_id)) for row in await reader.batches(limit)]
    unsettled = [row.batch_id for row, counts in rows if row.cancelling or counts.waiting or counts.running]
    alive = {batch_id: p.life for batch_id, p in (await pulses(config, unsettled) if unsettled else {}).items()}
    listed = [(row, counts, state_of(row, counts, alive.get(row.batch_id))) for row, counts in rows]
    if as_json:
        print_json([_summary(row, counts, state) for row, counts, state in listed])
        return
    columns = ("BATCH", "STATE", *(name.upper() for name in COUNTS), "POLICY", "CREATED")
    cells = [
        (row.batch_id, state, *(getattr(counts, name) for name in COUNTS), row.policy, row.created_at)
        for row, counts, state in listed
    ]
    print_table(columns, cells, optional=("CREATED", "POLICY")) if cells else say(
        "the ledger has no batch yet: `rollbook submit FILE` starts one"
    )


def _summary(row: BatchRow, counts: Counts, state: str) -> dict[str, Any]:
    return {
        "batch_id": row.batch_id,
        "state": state,
        **counts.model_dump(),
        "policy": row.policy,
        "created_at": row.created_at,
        "closed_at": row.closed_at,
    }


async def _one(config: Settings, reader: Reader, batch_id: str, as_json: bool) -> None:
    picture = await look(config, reader, batch_id)
    if as_json:
        print_json(picture)
    else:
        print_picture(picture)


async def look(config: Settings, reader: Reader, batch_id: str) -> dict[str, Any]:
    """Everything that `status BATCH` shows."""
    row = await reader.batch(batch_id)
    counts = await reader.counts(batch_id)
    pulse = (await pulses(config, [batch_id])).get(batch_id)
    state = state_of(row, counts, pulse.life if pulse else None)
    ended, seconds = await reader.pace(batch_id, row.registered_at or row.created_at)
    links = Links.of(config)
    return {
        **_summary(row, counts, state),
        "advice": advice(row, state),
        "troubles": pulse.troubles if pulse else [],
        "note": (row.spec or {}).get("note", ""),
        "notice": row.notice or "",
        "contract_digest": row.contract_digest,
        "null_desktop": RecordedContract.read(row.contract).resolved.null_desktop,
        "control": control_of(row),
        "launch": row.launch_index,
        "eta_s": eta_s(state, counts, ended, seconds),
        "domains": await reader.domains(batch_id),
        "masked_reasons": await reader.masked(batch_id),
        "excluded": await reader.excluded(batch_id),
        "under_way": await reader.running(batch_id),
        "links": {"batch": links.workflow(batch_id), "episodes": links.episodes(batch_id)},
    }


def print_picture(picture: dict[str, Any]) -> None:
    """The status of one batch, for people."""
    eta = picture["eta_s"]
    control = picture["control"]
    print_fields(
        {
            "batch": picture["batch_id"],
            "state": picture["state"],
            "note": picture["note"],
            "notice": picture["notice"],
            "beware": "do-nothing desktop: its scores mean nothing" if picture["null_desktop"] else None,
            "policy": picture["policy"],
            "concurrency": control["concurrency"],
            "control": control["reason"],
            "launch": picture["launch"],
            "time left": duration(eta) if eta else None,
            "Temporal UI": picture["links"]["batch"],
            "episodes": picture["links"]["episodes"],
        }
    )
    say()
    print_roll_call(picture["domains"])
    if picture["masked_reasons"]:
        say()
        print_table(("MASKED BECAUSE", "ROLLOUTS"), [(r["reason"], r["rollouts"]) for r in picture["masked_reasons"]])
    print_excluded(picture["excluded"])
    if picture["under_way"]:
        say()
        _print_under_way(picture["under_way"])
    for trouble in picture["troubles"]:
        say(f"trouble: {trouble}")
    if picture["advice"]:
        say()
        say(picture["advice"])


def print_roll_call(domains: list[dict[str, Any]]) -> None:
    """planned = admitted + masked + running + waiting, by domain and in all."""
    rows = [(row["domain"], *(row[name] for name in COUNTS)) for row in domains]
    if len(rows) > 1:
        rows.append(("all", *(sum(row[name] for row in domains) for name in COUNTS)))
    print_table(("DOMAIN", *(name.upper() for name in COUNTS)), rows)


EXCLUDED_SHOWN = 10


def print_excluded(rows: list[dict[str, Any]]) -> None:
    """Tasks that the batch leaves out, with the reason; the first of many."""
    if not rows:
        return
    say()
    cells = [(f"{row['domain']}/{row['task_id']}", clean(row["reason"], 200)) for row in rows[:EXCLUDED_SHOWN]]
    print_table(("EXCLUDED TASK", "BECAUSE"), cells)
    if len(rows) > EXCLUDED_SHOWN:
        say(f"and {len(rows) - EXCLUDED_SHOWN} more, {len(rows)} excluded in all: view excluded_tasks, or --json")


def _print_under_way(rows: list[dict[str, Any]]) -> None:
    cells = [
        (
            row["rollout_key"],
            row["state"],
            row["attempt"],
            row["step"],
            duration(age_s(row["claimed_at"])) if row["claimed_at"] else None,
            row["view_url"],
        )
        for row in rows
    ]
    print_table(("UNDER WAY", "STATE", "ATTEMPT", "STEP", "FOR", "LIVE VIEW"), cells)


POLL_S = 0.5
BAR = 40

Show = Callable[[str, Counts, float | None, list[str]], None]


MinAdmitted = Annotated[
    str | None,
    typer.Option("--min-admitted", help="Exit code 1 with fewer admitted rollouts: a number, or a share such as 90%."),
]


def read_floor(text: str | None) -> Callable[[Counts], int]:
    """The number of admitted rollouts that `--min-admitted` demands of a batch; raises InvalidInput."""
    if text is None:
        return lambda counts: 0
    if not (read := re.fullmatch(r"(\d{1,9})(%?)", text)) or (read[2] and int(read[1]) > 100):
        raise InvalidInput(f"--min-admitted: {text!r}: give a number such as 90, or a share of the planned such as 90%")
    number = int(read[1])
    return lambda counts: math.ceil(counts.planned * number / 100) if read[2] else number


def watch(
    batch: BatchArgument,
    min_admitted: MinAdmitted = None,
    timeout_s: Annotated[float | None, typer.Option("--timeout", help="Give up after so many seconds.")] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a batch until every rollout is final. Exit code 0 when it is complete, 1 when it ends otherwise."""

    async def work() -> int:
        floor = read_floor(min_admitted)
        config = settings()
        ended = await follow(config, batch, quiet=as_json, timeout_s=timeout_s)
        if as_json:
            print_json({"batch_id": batch, "complete": ended.code == OK, **ended.as_json()})
        return ended.code_with(floor)

    finish(work())


@dataclass(frozen=True)
class Ended:
    """A batch at its end: state and counts were read together, after its workflow had ended."""

    state: str
    counts: Counts

    @property
    def code(self) -> int:
        """Exit code: 0 only when it is complete."""
        return OK if self.state == "complete" else FAILURE

    def code_with(self, floor: Callable[[Counts], int]) -> int:
        """The exit code where a number of admitted rollouts is demanded."""
        wanted, admitted = floor(self.counts), self.counts.admitted
        if self.code == OK and admitted < wanted:
            note(f"{admitted} admitted, {wanted} demanded (--min-admitted)")
            return FAILURE
        return self.code

    def as_json(self) -> dict[str, Any]:
        """Its form in `--json`."""
        return {"state": self.state, **self.counts.model_dump()}


async def follow(config: Settings, batch_id: str, *, quiet: bool = False, timeout_s: float | None = None) -> Ended:
    """Show progress until the batch has ended; how it ended. `quiet`: progress goes nowhere."""
    client = await connect(config)
    async with open_reader(config) as reader:
        await reader.batch(batch_id)  # refuses a wrong name before anything is drawn
        watching = _Watch(reader, batch_id, lambda: pulse_of(client, batch_id))
        if quiet:
            row, counts, state = await watching.until_ended(_nowhere, timeout_s)
        elif is_terminal():
            with Live(console=console(), refresh_per_second=4, transient=True) as live:
                row, counts, state = await watching.until_ended(_on(live), timeout_s)
        else:
            row, counts, state = await watching.until_ended(_Lines(), timeout_s)
    _conclude(row, counts, state, quiet)
    return Ended(state, counts)


def _conclude(row: BatchRow, counts: Counts, state: str, quiet: bool) -> None:
    tell = note if quiet else say
    tell(f"{row.batch_id} {state}: {counts.admitted} admitted, {counts.masked} masked of {counts.planned} planned")
    if state != "complete" and (hint := advice(row, state)):
        tell(hint)


class _Watch:
    """Asks ledger and Temporal until a batch has ended."""

    def __init__(self, reader: Reader, batch_id: str, pulse: Callable[[], Awaitable[Pulse]]) -> None:
        self._reader = reader
        self._batch_id = batch_id
        self._pulse = pulse

    async def until_ended(self, show: Show, timeout_s: float | None) -> tuple[BatchRow, Counts, str]:
        """The batch, its roll call and its last state; raises Failed after `timeout_s` seconds."""
        started = time.monotonic()
        while True:
            pulse = await self._pulse()
            # the ledger is asked after Temporal: what the workflow did before it ended is in what we read
            row = await self._reader.batch(self._batch_id)
            counts = await self._reader.counts(self._batch_id)
            state = state_of(row, counts, pulse.life)
            if pulse.life != "running":
                return row, counts, state
            ended, seconds = await self._reader.pace(self._batch_id, row.registered_at or row.created_at)
            held = [row.control_reason] if row.control_reason.startswith(HELD) else []
            show(state, counts, eta_s(state, counts, ended, seconds), [*held, *pulse.troubles])
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise Failed(f"batch {self._batch_id} was not complete after {duration(timeout_s)}")
            await asyncio.sleep(POLL_S)


def _nowhere(state: str, counts: Counts, eta: float | None, troubles: list[str]) -> None:
    """Discard progress."""


def line(state: str, counts: Counts, eta: float | None) -> str:
    """The roll call in one line."""
    final = counts.admitted + counts.masked
    left = f", about {duration(eta)} left" if eta else ""
    return (
        f"{state}: {final}/{counts.planned} final ({counts.admitted} admitted, {counts.masked} masked), "
        f"{counts.running} running, {counts.waiting} waiting{left}"
    )


class _Lines:
    """A line whenever the numbers change, and for each new trouble."""

    def __init__(self) -> None:
        self._last: tuple[str, Counts] | None = None
        self._told: set[str] = set()

    def __call__(self, state: str, counts: Counts, eta: float | None, troubles: list[str]) -> None:
        if self._last != (state, counts):
            self._last = (state, counts)
            say(line(state, counts, eta))
        for trouble in troubles:
            what = re.sub(r"try \d+", "", trouble)
            if what not in self._told:
                self._told.add(what)
                say(f"trouble: {trouble}")


def _on(live: Live) -> Show:
    def show(state: str, counts: Counts, eta: float | None, troubles: list[str]) -> None:
        lines = [line(state, counts, eta), *(f"trouble: {trouble}" for trouble in troubles)]
        live.update(Text.assemble(*_bar(counts), "\n", "\n".join(lines)))

    return show


def _bar(counts: Counts) -> list[tuple[str, str]]:
    """Admitted, masked, running and waiting as parts of one bar."""
    parts = (
        (counts.admitted, "green", "━"),
        (counts.masked, "red", "━"),
        (counts.running, "yellow", "━"),
        (counts.waiting, "bright_black", "─"),
    )
    planned = max(counts.planned, 1)
    cells: list[tuple[str, str]] = []
    done = drawn = 0
    for number, colour, char in parts:
        done += number
        until = round(BAR * done / planned)
        cells.append((char * (until - drawn), colour))
        drawn = until
    return cells
