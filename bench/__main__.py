"""`python -m bench [steps|desktop|ledger|million|all]`: measures, prints tables, writes JSON."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from rich.console import Console

from bench import desktop, ledger, million, steps
from bench.house import house
from bench.report import Report

PARTS = ("steps", "desktop", "ledger", "million", "all")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], default="all")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the figures go")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--desktops", type=int, default=5, help="how many desktops are started")
    parser.add_argument("--rollouts", type=int, default=100_000, help="size of the ledger's batch")
    parser.add_argument("--played", type=int, default=20_000, help="how many of them are played one by one")
    return parser.parse_args()


async def _measure(chosen: argparse.Namespace, report: Report) -> None:
    parts = PARTS[:-1] if "all" in chosen.part else chosen.part
    if "steps" in parts:
        async with house() as own:
            found = await steps.run(own, chosen.episodes, chosen.steps, chosen.concurrency, chosen.rounds)
        for name, figures in found.items():
            report.add(name, figures)
    if "desktop" in parts:
        report.add("slim desktop", await desktop.run(chosen.desktops))
    if "ledger" in parts or "million" in parts:
        async with house() as own:
            report.add(f"ledger, {chosen.rollouts:,} rollouts", await ledger.run(own, chosen.rollouts, chosen.played))
            if "million" in parts:
                report.add("views, a million rollouts", await million.run(own, chosen.rollouts))


async def _main(chosen: argparse.Namespace, console: Console) -> int:
    report = Report()
    # a bench that receives a signal stops its servers
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await _measure(chosen, report)
    report.show(console)
    report.write(chosen.json)
    console.print(f"figures as JSON: {chosen.json}; machine: {report.machine()}")
    await asyncio.sleep(0.1)  # the client library's threads end before the interpreter does
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(_arguments(), Console(width=140))))
