"""Entry point of the `rollbook` command."""

import asyncio
import contextlib
import os
import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from psycopg import errors as postgres
from sqlalchemy.exc import DBAPIError
from temporalio.service import RPCError

from rollbook import redaction
from rollbook.cli import (
    audit,
    catalog,
    control,
    decide,
    demo,
    machine,
    probe,
    report,
    rerun,
    show,
    sql,
    status,
    submit,
)
from rollbook.cli.audit import evidence
from rollbook.cli.command import FAILURE, INTERRUPTED, WRONG_INPUT, exit_code
from rollbook.cli.out import clean, note, say
from rollbook.cli.sandboxes import sandboxes
from rollbook.cli.transfer import export, imports
from rollbook.errors import RollbookError

app = typer.Typer(
    name="rollbook",
    help="Durable OSWorld rollouts: Temporal workflows, a Postgres ledger, and a roll call that adds up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

STACK, SETUP, BATCHES, RESULTS = "The local stack", "What batches are made of", "Batches", "Results"

for command, panel in (
    (machine.up, STACK),
    (machine.env, STACK),
    (machine.down, STACK),
    (machine.ps, STACK),
    (machine.logs, STACK),
    (machine.doctor, STACK),
    (machine.migrate, STACK),
    (machine.worker, STACK),
    (machine.adopt_temporal, STACK),
    (audit.reconcile, STACK),
    (demo.demo, STACK),
    (probe.probe, SETUP),
    (submit.submit, BATCHES),
    (status.status, BATCHES),
    (status.watch, BATCHES),
    (control.pause, BATCHES),
    (control.resume, BATCHES),
    (control.stop, BATCHES),
    (control.set_concurrency, BATCHES),
    (control.cancel, BATCHES),
    (rerun.rerun, BATCHES),
    (show.show, RESULTS),
    (report.report, RESULTS),
    (audit.audit, RESULTS),
    (decide.admit, RESULTS),
    (decide.mask, RESULTS),
    (decide.redecide, RESULTS),
    (sql.sql, RESULTS),
):
    app.command(rich_help_panel=panel)(command)

app.command(rich_help_panel=STACK, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    machine.bench
)
app.add_typer(catalog.tasks, name="tasks", rich_help_panel=SETUP)
app.add_typer(catalog.scripts, name="scripts", rich_help_panel=SETUP)
app.add_typer(evidence, name="evidence", rich_help_panel=RESULTS)
app.add_typer(export, name="export", rich_help_panel=RESULTS)
app.add_typer(imports, name="import", rich_help_panel=RESULTS)
app.add_typer(sandboxes, name="sandboxes", rich_help_panel=STACK)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"rollbook {version('rollbook')}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all commands."""


_LINE = 4000


def run(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Errors are one line on stderr."""
    redaction.install()
    try:
        app(arguments)
    except SystemExit as finished:
        return _code(finished.code)
    except RollbookError as error:
        note(f"error: {clean(str(error), _LINE)}")
        return exit_code(error)
    except DBAPIError as error:
        return _ledger_error(error)
    except RPCError as error:
        note(f"error: Temporal: {clean(error.message, _LINE)} ({error.status.name})")
        return FAILURE
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except OSError as error:
        return _system_error(error)
    return 0


def _system_error(error: OSError) -> int:
    """A disk that is full, a file that may not be read: the file is named where the system names it."""
    where = f"{error.filename}: " if error.filename else ""
    note(f"error: {where}{error.strerror or error}")
    return FAILURE


def _code(code: str | int | None) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else FAILURE


def _ledger_error(error: DBAPIError) -> int:
    if isinstance(error.orig, postgres.UndefinedTable | postgres.UndefinedColumn | postgres.UndefinedFunction):
        note(
            f"error: the ledger's schema is not the one of this version: `rollbook migrate` ({clean(str(error.orig))})"
        )
        return WRONG_INPUT
    note(f"error: the ledger: {clean(str(error.orig), _LINE)}")
    return FAILURE


def entrypoint() -> NoReturn:
    """Run, flush, leave. Not a normal exit: the Temporal client library may crash in it."""
    if sys.stdout is None:  # closed by the caller: the result would be lost, and a file opened later take its number
        os.write(2, b"error: standard output is closed; redirect it to a file or to /dev/null\n")
        os._exit(FAILURE)
    code = run()
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        note(f"error: standard output: {getattr(error, 'strerror', None) or error}")
        code = code or FAILURE
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    entrypoint()
