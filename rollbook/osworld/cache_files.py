"""Files in OSWorld's cache: those that a phase's commands leave for the evaluator, and those that it downloads.

An `execute` or `command` step with `stdout` or `stderr` writes the guest's answer into the cache directory, and the
getter `cache_file` reads it there (eight canonical tasks do). Setup, postconfig and evaluation each
run in a directory of their own, perhaps on different hosts, so these files are carried from one to the next.
"""

import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rollbook.osworld.results import Phase

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
                if isinstance(name, str) and _is_plain(name):
                    found[name] = None
    return list(found)


def collect(cache: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The named files that are there. One above `FILE_LIMIT_BYTES` is not: the evaluator will say that it has none."""
    read = {name: read_regular(cache / name, FILE_LIMIT_BYTES) for name in names}
    return {name: data for name, data in read.items() if data is not None}


def restore(cache: Path, files: Mapping[str, bytes]) -> None:
    """Put copies into a fresh cache directory."""
    cache.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (cache / name).write_bytes(data)


def read_regular(path: Path, limit_bytes: int) -> bytes | None:
    """The bytes of a plain file of at most `limit_bytes`; None for anything else.

    No link is followed, no pipe is waited for.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > limit_bytes:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


HISTORY_DATABASE = "history_new.sqlite"
"""File in which the setup type `update_browse_history` keeps the empty database that it fetches."""
HISTORY_URL = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
"""Address of that database, as `desktop_env` 1.0.2 has it."""


@dataclass(frozen=True, slots=True)
class Download:
    """A file of the task, and its name in OSWorld's cache directory."""

    url: str
    name: str


def missing_downloads(task: dict[str, Any], phase: Phase, cache_dir: Path) -> tuple[Download, ...]:
    """Files that the phase needs and the cache directory lacks, in the order of the task, each name once.

    Left out: names that are paths. OSWorld creates no directories in its cache, so such a step cannot succeed.
    """
    wanted = _of_evaluator(task) if phase == "evaluate" else _of_setup(_steps(task, phase))
    by_name: dict[str, Download] = {}
    for url, name in wanted:
        if url and _is_plain(name) and not (cache_dir / name).exists():
            by_name.setdefault(name, Download(url, name))
    return tuple(by_name.values())


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\x00" not in name


def _steps(task: dict[str, Any], phase: Phase) -> list[dict[str, Any]]:
    steps = task.get("config", []) if phase == "prepare" else task["evaluator"].get("postconfig", [])
    return list(steps)


def _of_setup(steps: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for step in steps:
        parameters = step.get("parameters") or {}
        if step.get("type") == "download":
            for file in parameters.get("files", []):
                url, path = str(file.get("url", "")), str(file.get("path", ""))
                yield url, f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{PurePosixPath(path).name}"
        elif step.get("type") == "update_browse_history":
            yield HISTORY_URL, HISTORY_DATABASE


def _of_evaluator(task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    evaluator = task.get("evaluator") or {}
    for side in ("result", "expected"):
        sources = evaluator.get(side) or []
        for source in sources if isinstance(sources, list) else [sources]:
            if isinstance(source, dict) and source.get("type") == "cloud_file":
                yield from zip(_listed(source.get("path")), _listed(source.get("dest")), strict=False)


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
