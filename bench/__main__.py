"""`python -m bench [steps|desktop|ledger|all]`: measures, prints tables, writes JSON."""

import argparse
import asyncio
import sys
from pathlib import Path

from rich.console import Console

from bench import steps
from bench.house import house
from bench.report import Report

PARTS = ("steps", "desktop", "ledger", "all")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, default="all")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the figures go")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    return parser.parse_args()


async def _main(chosen: argparse.Namespace, console: Console) -> int:
    report = Report()
    if chosen.part in ("steps", "all"):
        async with house() as own:
            found = await steps.run(own, chosen.episodes, chosen.steps, chosen.concurrency, chosen.rounds)
        for name, figures in found.items():
            report.add(name, figures)
    report.show(console)
    report.write(chosen.json)
    console.print(f"figures as JSON: {chosen.json}; machine: {report.machine()}")
    await asyncio.sleep(0.1)  # the client library's threads end before the interpreter does
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(_arguments(), Console(width=140))))
