"""The examples work unchanged: valid, complete, and consistent with each other."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.outcome import ELIGIBLE
from models.policy import ScriptedPolicy
from models.spec import read_spec
from models.task import Task
from rollbook.config.settings import PROJECT_ROOT, get_settings
from rollbook.osworld.capabilities import validate_task
from rollbook.osworld.tasksets import read_task_set
from rollbook.policies.scripted import Script, read_script

EXAMPLES = PROJECT_ROOT / "examples"
BATCHES = sorted((EXAMPLES / "batches").glob("*.json"))
SCRIPTS = sorted((EXAMPLES / "scripts").glob("*.json"))
DIRECTORIES = {"quickstart": EXAMPLES / "quickstart", "osworld": get_settings().osworld_tasks}
"""Task sets that the examples name, by the name under which they are registered."""

SCRIPT_SETS = {"quickstart": "quickstart", "osworld-os": "osworld"}
"""Which task set a script file answers."""


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _tasks(name: str) -> dict[str, Task]:
    directory = DIRECTORIES[name]
    if not directory.is_dir():
        pytest.skip(f"the task set {name} is not on this machine (setting ROLLBOOK_SHARED)")
    return {task.task_id: task for task in read_task_set(directory)}


def _script(name: str) -> Script:
    return read_script(_load(EXAMPLES / "scripts" / f"{name}.json"))


def test_every_file_of_the_quickstart_set_is_listed() -> None:
    tasks = _tasks("quickstart")
    files = {(path.parent.name, path.stem) for path in (EXAMPLES / "quickstart" / "examples").rglob("*.json")}
    assert files == {(task.domain, task.task_id) for task in tasks.values()}
    assert len(tasks) >= 6


def test_quickstart_shows_every_kind_of_ending() -> None:
    """Endings of the demonstration: success, a fraction, an infeasible task, a step limit, an honest failure."""
    expected = _load(EXAMPLES / "quickstart" / "expected.json")
    assert expected.keys() == _tasks("quickstart").keys()
    endings = [(one["termination_reason"], one["score"]) for one in expected.values()]
    assert all(reason in ELIGIBLE for reason, _ in endings)
    assert endings.count(("agent_done", 1.0)) >= 2
    assert ("agent_fail", 1.0) in endings
    assert ("agent_done", 0.0) in endings
    assert any(reason == "max_steps" for reason, _ in endings)
    assert any(0 < score < 1 for _, score in endings)


def test_quickstart_needs_nothing_from_outside() -> None:
    for task in _tasks("quickstart").values():
        assert validate_task(task.document) == []
        assert "http" not in json.dumps(task.document)
        assert task.document["proxy"] is False
        assert all(step["type"] != "download" for step in task.document["config"])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_answer_tasks_that_exist(path: Path) -> None:
    script = read_script(_load(path))
    assert script.tasks.keys() <= _tasks(SCRIPT_SETS[path.stem]).keys()


def test_quickstart_script_answers_every_task() -> None:
    assert _script("quickstart").tasks.keys() == _tasks("quickstart").keys()


@pytest.mark.parametrize("path", BATCHES, ids=lambda path: path.stem)
def test_batches_are_valid_and_name_what_exists(path: Path) -> None:
    spec = read_spec(_load(path))
    if isinstance(spec.policy, ScriptedPolicy):
        script = _script(spec.policy.script)
        assert SCRIPT_SETS[spec.policy.script] == spec.task_set
        assert set(spec.tasks.ids or ()) <= script.tasks.keys()
    tasks = _tasks(spec.task_set)
    assert {*(spec.tasks.ids or ()), *spec.tasks.exclude_ids} <= tasks.keys()
    assert set(spec.tasks.domains or ()) <= {task.domain for task in tasks.values()}


def test_steps_fit_the_limit_except_where_the_limit_is_the_point() -> None:
    """A script that is one step too long would end in max_steps by mistake."""
    limit = read_spec(_load(EXAMPLES / "batches" / "quickstart.json")).limits.max_steps
    expected = _load(EXAMPLES / "quickstart" / "expected.json")
    for task_id, script in _script("quickstart").tasks.items():
        ended = [step for step in script.steps[:limit] if {"DONE", "FAIL"} & set(step.actions)]
        assert bool(ended) == (expected[task_id]["termination_reason"] != "max_steps"), task_id
