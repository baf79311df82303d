"""Which files a task's phase would fetch from the network because its cache directory does not hold them yet.

OSWorld's cache rule: a setup download is kept as `uuid5(URL)_<base name of the guest path>`, a gold file of an
evaluator as its `dest`. A file that is there is never fetched: an asset mirror only has to fill the directory.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from rollbook.osworld.results import Phase

HISTORY_DATABASE = "history_new.sqlite"
"""Where the setup type `update_browse_history` keeps the empty database it fetches."""


def missing_downloads(task: dict[str, Any], phase: Phase, cache_dir: Path) -> tuple[str, ...]:
    """URLs that the phase needs and the cache directory lacks, in the order of the task."""
    wanted = _of_evaluator(task) if phase == "evaluate" else _of_setup(_steps(task, phase))
    return tuple(url for url, name in wanted if not (cache_dir / name).exists())


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
            yield "update_browse_history", HISTORY_DATABASE
        elif step.get("type") in ("googledrive", "login"):
            yield f"{step['type']}: an account", "never cached"


def _of_evaluator(task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    evaluator = task.get("evaluator") or {}
    for side in ("result", "expected"):
        sources = evaluator.get(side) or []
        for source in sources if isinstance(sources, list) else [sources]:
            if not isinstance(source, dict):
                continue
            if source.get("type") == "cloud_file":
                yield from zip(_listed(source.get("path")), _listed(source.get("dest")), strict=False)
            elif source.get("type") == "googledrive_file":
                yield "googledrive_file: an account", "never cached"


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
