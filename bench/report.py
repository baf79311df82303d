"""Figures of a run: a table for people, JSON for scripts."""

import json
import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured number. `values` holds the rounds when there were several; `value` is their median."""

    name: str
    value: float
    unit: str
    aim: str = ""
    note: str = ""
    values: tuple[float, ...] = ()


def figure(name: str, values: float | Iterable[float], unit: str, *, aim: str = "", note: str = "") -> Figure:
    """A figure from one measurement or from the rounds of one."""
    if isinstance(values, int | float):
        return Figure(name, float(values), unit, aim, note)
    rounds = tuple(float(value) for value in values)
    return Figure(name, statistics.median(rounds), unit, aim, note, rounds if len(rounds) > 1 else ())


@dataclass
class Report:
    """Sections of figures, in the order in which they were measured."""

    sections: dict[str, list[Figure]] = field(default_factory=dict)

    def add(self, section: str, figures: Iterable[Figure]) -> None:
        """Add figures below a heading."""
        self.sections.setdefault(section, []).extend(figures)

    def machine(self) -> dict[str, Any]:
        """The machine of the measurement."""
        return {
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
            "python": platform.python_version(),
            "load_1_min": os.getloadavg()[0],
        }

    def write(self, path: Path) -> None:
        """As JSON."""
        body = {
            "machine": self.machine(),
            "sections": {
                name: [{key: value for key, value in asdict(one).items() if value not in ("", ())} for one in figures]
                for name, figures in self.sections.items()
            },
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body, indent=2) + "\n")

    def show(self, console: Console) -> None:
        """As tables."""
        for name, figures in self.sections.items():
            table = Table(title=name, title_justify="left", show_edge=False, pad_edge=False)
            table.add_column("figure")
            table.add_column("value", justify="right")
            table.add_column("unit")
            table.add_column("aim", justify="right")
            table.add_column("rounds / note", overflow="fold")
            for one in figures:
                rounds = " ".join(_number(value) for value in one.values)
                table.add_row(
                    one.name, _number(one.value), one.unit, one.aim, "; ".join(filter(None, (rounds, one.note)))
                )
            console.print(table)
            console.print()


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
