"""Reading a directory in OSWorld's layout: all of it, or every fault at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.task import set_digest
from rollbook.config.settings import load_settings
from rollbook.errors import InvalidInput
from rollbook.osworld.tasksets import read_task_set


def document(task_id: str, **changes: Any) -> dict[str, Any]:
    return {"id": task_id, "instruction": "Do it.", "config": [], "evaluator": {"func": "infeasible"}, **changes}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three sound tasks in two domains, and one that no list names."""
    write(tmp_path, "os/t1", document("t1"))
    write(tmp_path, "os/t2", document("t2"))
    write(tmp_path, "chrome/t3", document("t3"))
    write(tmp_path, "chrome/unlisted", document("unlisted"))
    write_list(tmp_path, {"os": ["t1", "t2"], "chrome": ["t3"]})
    return tmp_path


def write(directory: Path, name: str, content: Any) -> None:
    path = directory / "examples" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def write_list(directory: Path, listed: Any, name: str = "test_all.json") -> None:
    (directory / name).write_text(listed if isinstance(listed, str) else json.dumps(listed))


def faults(directory: Path, list_file: str = "test_all.json") -> str:
    with pytest.raises(InvalidInput) as caught:
        read_task_set(directory, list_file)
    return str(caught.value)


def test_the_list_decides_and_the_folder_is_the_domain(directory: Path) -> None:
    tasks = read_task_set(directory)
    assert [(task.domain, task.task_id) for task in tasks] == [("os", "t1"), ("os", "t2"), ("chrome", "t3")]


def test_another_list_is_another_set(directory: Path) -> None:
    write_list(directory, {"chrome": ["t3", "unlisted"]}, "small.json")
    assert [task.task_id for task in read_task_set(directory, "small.json")] == ["t3", "unlisted"]


def test_layout_and_order_do_not_change_the_set(directory: Path) -> None:
    before = set_digest(read_task_set(directory))
    write_list(directory, '{"chrome": ["t3"],\n "os": ["t2", "t1"]}')
    write(directory, "os/t1", json.dumps(dict(reversed(document("t1").items())), indent=4))
    assert set_digest(read_task_set(directory)) == before


def test_every_fault_is_named_at_once(directory: Path) -> None:
    write_list(directory, {"os": ["t1", "t2", "t1", "absent"], "chrome": ["t3", "t2"]})
    write(directory, "os/t2", document("t2", evaluator={}))
    write(directory, "chrome/t3", "{not json")
    message = faults(directory)
    assert "os/t1 is listed before under os" in message
    assert "chrome/t2 is listed before under os" in message
    assert "examples/os/absent.json: no such file" in message
    assert "examples/os/t2.json: evaluator.func: Field required" in message
    assert "examples/chrome/t3.json: " in message


def test_a_near_miss_is_suggested(directory: Path) -> None:
    write_list(directory, {"chrome": ["unlistde"]})
    assert "did you mean unlisted?" in faults(directory)


def test_a_long_list_of_faults_is_cut(directory: Path) -> None:
    write_list(directory, {"os": [f"absent{number}" for number in range(25)]})
    assert "and 15 more" in faults(directory)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (document("other"), "id: is 'other', but the file is named 't1'"),
        ('{"id": "t1", "id": "t1"}', "the key 'id' occurs twice"),
        ('{"id": "t1", "score": NaN}', "NaN is not JSON"),
        ("[]", "examples/os/t1.json: "),
        (document("t1", proxy="yes"), "proxy: "),
    ],
)
def test_an_unsound_file_is_named(directory: Path, content: Any, message: str) -> None:
    write(directory, "os/t1", content)
    assert message in faults(directory)
    assert "examples/os/t1.json" in faults(directory)


@pytest.mark.parametrize("listed", [[], ["t1"], {"os": "t1"}, {"os": [1]}, "null", {"os": None}])
def test_a_list_of_another_shape_is_refused(directory: Path, listed: Any) -> None:
    write_list(directory, listed)
    assert "must be an object of domain to list of task ids" in faults(directory)


@pytest.mark.parametrize("listed", [{}, {"os": []}])
def test_an_empty_set_is_refused(directory: Path, listed: Any) -> None:
    write_list(directory, listed)
    assert "names no task" in faults(directory)


def test_a_missing_list_names_the_lists_there_are(directory: Path) -> None:
    write_list(directory, {}, "small.json")
    assert "lists there: small.json, test_all.json" in faults(directory, "test_big.json")


@pytest.mark.parametrize("task_id", ["../chrome/t3", "/etc/passwd", "..", "", "a/b", "t1.json/../t1"])
def test_no_id_leaves_its_folder(directory: Path, task_id: str) -> None:
    write_list(directory, {"os": [task_id]})
    assert f"examples/os/{task_id}.json: " in faults(directory)


@pytest.mark.parametrize("domain", ["..", "../os", "", "a/b"])
def test_no_domain_leaves_the_set(directory: Path, domain: str) -> None:
    write_list(directory, {domain: ["t1"]})
    assert f"examples/{domain}/t1.json: " in faults(directory)


def test_the_canonical_lists_are_read(tmp_path: Path) -> None:
    canonical = load_settings().osworld_tasks
    if not canonical.is_dir():
        pytest.skip(f"no canonical OSWorld tasks in {canonical} (ROLLBOOK_SHARED)")
    sizes = {"test_all.json": 369, "test_nogdrive.json": 361, "test_small.json": 39, "test_infeasible.json": 28}
    assert {name: len(read_task_set(canonical, name)) for name in sizes} == sizes
