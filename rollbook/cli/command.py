"""Parts that commands share: exit codes, options, input files, the event loop.

Exit codes: 0: success. 1: negative answer or failure. 2: wrong input or configuration.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from models.explain import parse_json
from rollbook.errors import ConfigError, InvalidInput, RollbookError

OK: Final = 0
FAILURE: Final = 1
WRONG_INPUT: Final = 2
INTERRUPTED: Final = 130


class Failed(RollbookError):
    """The answer is negative, or the command failed; exit code 1."""


class Unreachable(Failed):
    """Temporal or the ledger does not answer."""


def exit_code(error: RollbookError) -> int:
    """The exit code of an error that ends a command."""
    return WRONG_INPUT if isinstance(error, ConfigError | InvalidInput) else FAILURE


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="Batch id.")]
RolloutArgument = Annotated[
    str, typer.Argument(metavar="ROLLOUT", help="Rollout key, or the beginning or end of one if only one fits.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept with the decision.")]


_SETTLE_S = 0.05


def finish(work: Coroutine[Any, Any, int]) -> None:
    """Run `work`, which returns the command's exit code."""
    if code := asyncio.run(_settled(work)):
        raise typer.Exit(code)


async def _settled(work: Coroutine[Any, Any, int]) -> int:
    code = await work
    # Let the threads of the Temporal client finish before the loop closes: it may crash otherwise.
    await asyncio.sleep(_SETTLE_S)
    return code


def name_of(name: str) -> str:
    """The name of a file of the command line, for messages."""
    return "standard input" if name == "-" else name


def read_json(name: str) -> Any:
    """The JSON of a file, or of standard input for `-`; raises InvalidInput that names file, line and column."""
    where = name_of(name)
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        return parse_json(text)
    except OSError as error:
        raise InvalidInput(f"{where}: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{where}: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except ValueError as error:  # not UTF-8, or a rule of parse_json
        raise InvalidInput(f"{where}: {error}") from error


def read_json_lines(name: str) -> tuple[dict[int, Any], str]:
    """The JSON of each line that is not blank, by its number, and the SHA-256 of the file; raises InvalidInput that
    names the line. Only a line feed ends a line: other separators may occur in a text."""
    where = name_of(name)
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        lines = data.decode("utf-8").split("\n")
    except OSError as error:
        raise InvalidInput(f"{where}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where}: {error}") from error
    rows = {}
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                rows[number] = parse_json(line)
        except ValueError as error:
            raise InvalidInput(f"{where}: line {number}: {error}") from error
    return rows, hashlib.sha256(data).hexdigest()
