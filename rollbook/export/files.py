"""Files that appear whole or not at all."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from models.identity import canonical_json
from rollbook.errors import InvalidInput
from rollbook.redaction import redact


def line(value: Any) -> bytes:
    """One JSON line: sorted keys, no white space, no NaN, no secret of this process."""
    return redact(canonical_json(value)).encode() + b"\n"


def write_whole(path: Path, chunks: Iterable[bytes]) -> str:
    """Write next to `path`, sync, then rename over it; SHA-256 of what was written."""
    found = hashlib.sha256()
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with scratch.open("wb") as file:
            for chunk in chunks:
                found.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return found.hexdigest()


def parent_of(path: Path) -> Path:
    """The directory of an output file, made if absent; raises InvalidInput when that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--out: {path.parent}: {error.strerror}") from error
    return path.parent
