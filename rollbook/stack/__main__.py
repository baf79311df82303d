"""`python -m rollbook.stack up|down|ps|logs|doctor|engine`: the stack without the rest of the command line."""

import argparse
import asyncio
import os
import sys

from rollbook.config.settings import load_settings
from rollbook.errors import RollbookError
from rollbook.stack.docker_engine import ensure_engine
from rollbook.stack.doctor import doctor, print_checks
from rollbook.stack.lifecycle import down, up
from rollbook.stack.report import StackReport, logs, ps


def main() -> None:
    """Run one command; 0 on success, 1 otherwise."""
    arguments = _parser().parse_args()
    try:
        code = asyncio.run(_run(arguments))
    except RollbookError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    # Not a normal exit: the Temporal client library may crash in it (temporal-notes §0.13).
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rollbook.stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start what is not running")
    start.add_argument("--no-engine", action="store_true", help="leave the Docker engine alone")
    stop = commands.add_parser("down", help="stop every process and remove every desktop of this deployment")
    stop.add_argument("--engine", action="store_true", help="also stop a Docker engine that `up` started")
    for name, help_text in (("ps", "what runs"), ("doctor", "what is missing and how to mend it")):
        commands.add_parser(name, help=help_text).add_argument("--json", action="store_true")
    log = commands.add_parser("logs", help="print logs")
    log.add_argument("name", nargs="?")
    log.add_argument("-f", "--follow", action="store_true")
    log.add_argument("-n", "--lines", type=int, default=50)
    commands.add_parser("engine", help="make sure that a Docker engine runs")
    return parser


async def _run(arguments: argparse.Namespace) -> int:
    settings = load_settings()
    match arguments.command:
        case "up":
            await up(settings, engine=not arguments.no_engine)
        case "down":
            await down(settings, engine=arguments.engine)
        case "engine":
            await ensure_engine(settings)
        case "logs":
            await logs(settings, arguments.name, arguments.follow, arguments.lines)
        case "ps":
            report = await ps(settings)
            print(report.model_dump_json(indent=1)) if arguments.json else print_report(report)
            return 0 if report.healthy else 1
        case "doctor":
            checks = await doctor(settings)
            return print_checks(checks, as_json=arguments.json)
    return 0


def print_report(report: StackReport) -> None:
    """The report as a table."""
    print(f"{'NAME':<12}{'STATE':<12}{'PID':<9}{'FOR':<9}{'RESTARTS':<10}ADDRESS")
    for row in report.processes:
        seconds = f"{row.for_s}s"
        print(
            f"{row.name:<12}{row.state:<12}{row.pid or '-':<9}{seconds:<9}{row.restarts:<10}{row.address or ''}"
            + (f"  (last exit: {row.last_exit.splitlines()[0]})" if row.last_exit else "")
        )
    print(f"desktops: {'no Docker engine' if report.desktops is None else report.desktops}")
    if report.advice:
        print(report.advice)


if __name__ == "__main__":
    main()
