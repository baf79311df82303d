"""Files that a phase's commands leave in OSWorld's cache for the evaluator.

An `execute` or `command` step with `stdout` or `stderr` writes the guest's answer into the cache directory, and the
getter `cache_file` reads it there (osworld-notes §2; eight canonical tasks do). Setup, postconfig and evaluation each
run in a directory of their own, perhaps on different hosts, so these files are carried from one to the next.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollbook.osworld.untrusted import read_regular

FILE_LIMIT_BYTES = 64 * 2**20


def written_by(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the files that setup steps write into the cache, in their order. OSWorld creates no directories in it,
    so only plain names can arrive there."""
    found: dict[str, None] = {}
    for step in steps:
        if step.get("type") in ("execute", "command"):
            parameters = step.get("parameters") or {}
            for key in ("stdout", "stderr"):
                name = parameters.get(key)
                if isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\x00" not in name:
                    found[name] = None
    return list(found)


def collect(cache: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The named files that are there. One above `FILE_LIMIT_BYTES` is not: the evaluator will say that it has none."""
    read = {name: read_regular(cache / name, FILE_LIMIT_BYTES) for name in names}
    return {name: data for name, data in read.items() if data is not None}


def seed(cache: Path, files: Mapping[str, bytes]) -> None:
    """Put copies into a fresh cache directory."""
    cache.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (cache / name).write_bytes(data)
