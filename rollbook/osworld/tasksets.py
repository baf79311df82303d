"""Reads a directory in OSWorld's layout: `examples/<domain>/<task_id>.json` and a list file such as `test_all.json`.

The list decides which tasks belong to the set; the domain is the folder. Nothing is registered unless all is sound.
"""

from pathlib import Path
from typing import Any

from models.explain import did_you_mean, parse_json
from models.task import Task, read_task
from rollbook.errors import InvalidInput

LIST_FILE = "test_all.json"
_SHOWN = 10


def read_task_set(directory: Path, list_file: str = LIST_FILE) -> list[Task]:
    """Every task that the list names; raises InvalidInput that names the files at fault, all of them."""
    listed = _read_list(directory / list_file)
    problems: list[str] = []
    tasks: list[Task] = []
    seen: dict[str, str] = {}
    for domain, ids in listed.items():
        for task_id in ids:
            if task_id in seen:
                problems.append(f"{list_file}: {domain}/{task_id} is listed before under {seen[task_id]}")
                continue
            seen[task_id] = domain
            try:
                tasks.append(_read_one(directory, domain, task_id))
            except ValueError as error:
                problems.append(f"examples/{domain}/{task_id}.json: {error}")
    if not tasks and not problems:
        problems.append(f"{list_file}: names no task")
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise InvalidInput(f"task set {directory}: " + "; ".join(problems[:_SHOWN]) + more)
    return tasks


def _read_list(path: Path) -> dict[str, list[str]]:
    try:
        listed = _load(path)
    except ValueError as error:
        others = sorted(other.name for other in path.parent.glob("*.json"))
        hint = f"; lists there: {', '.join(others)}" if others else ""
        raise InvalidInput(f"task list {path}: {error}{hint}") from error
    sound = isinstance(listed, dict) and all(
        isinstance(ids, list) and all(isinstance(one, str) for one in ids) for ids in listed.values()
    )
    if not sound:
        raise InvalidInput(f"task list {path}: must be an object of domain to list of task ids")
    return listed  # type: ignore[no-any-return]


def _read_one(directory: Path, domain: str, task_id: str) -> Task:
    path = directory / "examples" / domain / f"{task_id}.json"
    if path.parent.parent != directory / "examples" or path.name != f"{task_id}.json":
        raise ValueError("domain and id must be plain names")
    if not path.exists():
        hint = did_you_mean(task_id, (other.stem for other in path.parent.glob("*.json")))
        raise ValueError(f"no such file{hint and f'; {hint}'}")
    task = read_task(domain, _load(path))
    if task.task_id != task_id:
        raise ValueError(f"id: is {task.task_id!r}, but the file is named {task_id!r}")
    return task


def _load(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
