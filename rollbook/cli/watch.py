"""`watch`: the roll call of one batch until every row is final."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

from models.batch import Counts
from rollbook.cli.aio import finish
from rollbook.cli.failures import NOT_TRUE, OK, Failed
from rollbook.cli.launch import Pulse, pulse_of
from rollbook.cli.opening import connect, open_reader, settings
from rollbook.cli.options import AsJson, BatchArgument
from rollbook.cli.out import console, duration, is_terminal, note, print_json, say
from rollbook.cli.state import advice, eta_s, state_of
from rollbook.config.settings import Settings
from rollbook.ledger.reader import BatchRow, Reader

POLL_S = 0.5
BAR = 40

Show = Callable[[str, Counts, float | None, list[str]], None]


def watch(
    batch: BatchArgument,
    timeout_s: Annotated[float | None, typer.Option("--timeout", help="Give up after so many seconds.")] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a batch until every rollout is final. Exit code 0 when it is complete, 1 when it ends otherwise."""

    async def work() -> int:
        found = settings()
        ended = await follow(found, batch, quiet=as_json, timeout_s=timeout_s)
        if as_json:
            print_json({"batch_id": batch, "complete": ended.code == OK, **ended.as_json()})
        return ended.code

    finish(work())


@dataclass(frozen=True)
class Ended:
    """A batch at its end: state and counts were read together, after its workflow had ended."""

    state: str
    counts: Counts

    @property
    def code(self) -> int:
        """Exit code: 0 only when it is complete."""
        return OK if self.state == "complete" else NOT_TRUE

    def as_json(self) -> dict[str, Any]:
        """What `--json` says of it."""
        return {"state": self.state, **self.counts.model_dump()}


async def follow(found: Settings, batch_id: str, *, quiet: bool = False, timeout_s: float | None = None) -> Ended:
    """Show progress until the batch has ended; how it ended. `quiet`: progress goes nowhere."""
    client = await connect(found)
    async with open_reader(found) as reader:
        await reader.batch(batch_id)  # a wrong name is told before anything is drawn
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
            show(state, counts, eta_s(state, counts, ended, seconds), pulse.troubles)
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise Failed(f"batch {self._batch_id} was not complete after {duration(timeout_s)}")
            await asyncio.sleep(POLL_S)


def _nowhere(state: str, counts: Counts, eta: float | None, troubles: list[str]) -> None:
    """Progress for nobody."""


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
