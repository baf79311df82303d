"""Reads JSON files that people wrote."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from models.explain import parse_json
from rollbook.errors import InvalidInput


def name_of(name: str) -> str:
    """How messages call a file that was given on the command line."""
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
    except ValueError as error:  # not UTF-8, or one of ours
        raise InvalidInput(f"{where}: {error}") from error


def read_json_lines(name: str) -> tuple[dict[int, Any], str]:
    """The JSON of each line that is not blank, by its number, and the SHA-256 of the file; raises InvalidInput that
    names the line. Only a line feed ends a line: other separators may stand in a text."""
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
