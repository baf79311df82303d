"""Printing of results: one JSON document for scripts, tables on a terminal, plain aligned lines otherwise."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.style import Style
from rich.table import Table
from rich.text import Text

from rollbook.redaction import redact

Cell = str | int | float | bool | datetime | None


def is_terminal() -> bool:
    """True if stdout is a terminal."""
    return sys.stdout.isatty()


def console() -> Console:
    """The terminal; never interprets markup or highlights, because most of the text comes from models and desktops."""
    return Console(markup=False, highlight=False, emoji=False)


def say(text: str = "") -> None:
    """One line on stdout."""
    print(text)


def note(text: str) -> None:
    """One line for people on stderr: not part of the result."""
    print(redact(text), file=sys.stderr)


def print_json(value: Any) -> None:
    """The one JSON document of a command run with `--json`."""
    print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    return str(value)


def clean(text: str, limit: int | None = None) -> str:
    """One line without control characters (a guest or a model may have written them), at most `limit` long."""
    flat = "".join(c if c.isprintable() else " " for c in " ".join(redact(text).split()))
    return flat if limit is None or len(flat) <= limit else flat[: limit - 1] + "…"


def cell(value: Cell) -> str:
    """A value as people read it; `-` for an unknown one."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        short = f"{value:.4f}".rstrip("0")
        return f"{short}0" if short.endswith(".") else short
    return clean(str(value))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "", optional: Sequence[str] = ()
) -> None:
    """Rows under column names. Numbers are right-aligned. A narrow terminal omits `optional` ones, first to last."""
    listed = [list(row) for row in rows]
    right = [_numeric(row[i] for row in listed) for i in range(len(columns))]
    texts = [[cell(value) for value in row] for row in listed]
    if is_terminal():
        _rich_table(columns, texts, right, title, optional)
    else:
        _plain_table(columns, texts, right, title)


def _numeric(values: Iterable[Cell]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)


def _rich_table(
    columns: Sequence[str], rows: list[list[str]], right: list[bool], title: str, optional: Sequence[str]
) -> None:
    terminal = console()
    for dropped in range(len(optional) + 1):
        shown = [i for i, name in enumerate(columns) if name not in optional[:dropped]]
        table = Table(title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False)
        for i in shown:
            justify: Literal["left", "right"] = "right" if right[i] else "left"
            whole = columns[i] in WHOLE
            table.add_column(Text(columns[i]), justify=justify, overflow="fold", header_style="bold", no_wrap=whole)
        for row in rows:
            table.add_row(*(_rich_cell(row[i]) for i in shown))
        if Measurement.get(terminal, terminal.options.update_width(10_000), table).maximum <= terminal.width:
            break
    # Wider than the terminal rather than an id in two pieces: the terminal's own line break leaves it whole to a copy.
    least = [max(cell_len(row[i]) for row in ([columns, *rows] if columns[i] in WHOLE else [columns])) for i in shown]
    terminal.width = max(terminal.width, sum(least) + GAP * (len(shown) - 1))
    terminal.print(table)


WHOLE = frozenset({"BATCH", "ROLLOUT", "UNDER WAY", "TASK", "SANDBOX", "STATE", "ENDED AS"})
"""Columns of names and states, which are never wrapped."""
GAP = 2
"""Between two columns."""


def _rich_cell(value: str) -> Text:
    """An address as a link under its last part: a folded address cannot be followed."""
    if value.startswith(("http://", "https://")):
        return Text(value.rstrip("/").rpartition("/")[2].partition("?")[0][:16], style=Style(link=value))
    return Text(value)


def _plain_table(columns: Sequence[str], rows: list[list[str]], right: list[bool], title: str) -> None:
    if title:
        print(title)
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in [list(columns), *rows]:
        padded = [
            value.rjust(width) if numeric else value.ljust(width)
            for value, width, numeric in zip(row, widths, right, strict=True)
        ]
        print("  ".join(padded).rstrip())


def print_fields(fields: Mapping[str, Cell]) -> None:
    """`name: value` lines, aligned; unknown values are left out."""
    known = {name: value for name, value in fields.items() if value is not None and value != ""}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        print(f"{name + ':':<{width + 1}} {cell(value)}")


def several(number: int, what: str) -> str:
    """`1 rollout`, `2 rollouts`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
