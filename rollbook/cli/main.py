"""Entry point of the `rollbook` command."""

import asyncio
import os
import sys
from typing import NoReturn

from psycopg import errors as postgres
from sqlalchemy.exc import DBAPIError
from temporalio.service import RPCError

from rollbook import redaction
from rollbook.cli.app import app
from rollbook.cli.failures import INTERRUPTED, NOT_TRUE, WRONG_INPUT, exit_code
from rollbook.cli.out import clean, note
from rollbook.errors import RollbookError

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
        return NOT_TRUE
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_TRUE
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    return 0


def _code(code: str | int | None) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else NOT_TRUE


def _ledger_error(error: DBAPIError) -> int:
    if isinstance(error.orig, postgres.UndefinedTable | postgres.UndefinedColumn | postgres.UndefinedFunction):
        note(
            f"error: the ledger's schema is not the one of this version: `rollbook migrate` ({clean(str(error.orig))})"
        )
        return WRONG_INPUT
    note(f"error: the ledger: {clean(str(error.orig), _LINE)}")
    return NOT_TRUE


def entrypoint() -> NoReturn:
    """Run, flush, leave. Not a normal exit: the Temporal client library may crash in it (temporal-notes §0.13)."""
    code = run()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or NOT_TRUE
    os._exit(code)


if __name__ == "__main__":
    entrypoint()
