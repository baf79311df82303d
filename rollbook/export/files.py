"""Files that appear whole or not at all, one by one or as a set."""

import fcntl
import hashlib
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Self

from models.identity import canonical_json
from rollbook.errors import InvalidInput
from rollbook.redaction import redact


def line(value: Any) -> bytes:
    """One JSON line: sorted keys, no white space, no NaN, no secret of this process."""
    return redact(canonical_json(value)).encode() + b"\n"


def write_whole(path: Path, chunks: Iterable[bytes]) -> str:
    """Write next to `path`, sync, then rename over it; SHA-256 of what was written."""
    with FileSet(path) as files:
        for chunk in chunks:
            files.write(path, chunk)
        files.publish()
        return files.sha256(path)


class FileSet:
    """Files of one directory that belong together, written next to their places as they come.

    The last path is the marker. `publish` takes an older marker away before it touches anything else and puts the new
    one in place last: whenever the marker is there, all files are, and they are of the same set. A crash in between
    leaves no marker; writing the set again repairs that. The files are locked while written: a second writer of them is
    refused with InvalidInput, and what a killed one left behind is written over.
    """

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._found = {path: hashlib.sha256() for path in paths}
        self._open: dict[Path, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for path in self._paths:
                file = _locked(path)
                stack.enter_context(file)
                stack.callback(_remove_own, file, _scratch(path))  # before its lock goes
                self._open[path] = file
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, path: Path, chunk: bytes) -> None:
        """Append to one of the files."""
        self._found[path].update(chunk)
        self._open[path].write(chunk)

    def sha256(self, path: Path) -> str:
        """Digest of what was written to one of the files so far."""
        return self._found[path].hexdigest()

    def publish(self) -> None:
        """Put the files in their places, the marker last."""
        for file in self._open.values():
            file.flush()
            # Before any rename: a name that survives a power cut must not lead to an empty file.
            os.fsync(file.fileno())
        *others, marker = self._paths
        if others:
            marker.unlink(missing_ok=True)
            _sync_directory(marker)
        for path in others:
            _scratch(path).replace(path)
        if others:
            _sync_directory(marker)
        _scratch(marker).replace(marker)
        _sync_directory(marker)


def parent_of(path: Path) -> Path:
    """The directory of an output file, made if absent; raises InvalidInput when that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--out: {path.parent}: {error.strerror}") from error
    return path.parent


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _locked(path: Path) -> BinaryIO:
    """The empty scratch file of `path`, ours until it is closed."""
    scratch = _scratch(path)
    while True:
        # Append mode does not empty the file of a writer that holds the lock.
        file = scratch.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InvalidInput(f"--out: {path} is being written by another export; wait for it") from None
        if _is_at(file, scratch):
            file.truncate(0)
            return file
        file.close()  # its writer published it between our open and our lock


def _remove_own(file: BinaryIO, scratch: Path) -> None:
    """Once a file is published, its scratch path may be another writer's already."""
    if _is_at(file, scratch):
        scratch.unlink()


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sync_directory(path: Path) -> None:
    """Renames and removals so far reach the disk before any later one."""
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
