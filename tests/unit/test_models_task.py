"""OSWorld's task documents, the address of a set, and the canonical tasks themselves."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.identity import digest
from models.task import DOMAINS, Task, TaskFilter, domain_rank, read_task, set_digest
from rollbook.config.settings import load_settings

DOCUMENT: dict[str, Any] = {
    "id": "e0df059f-28a6-4169-924f-b9623e7184cc",
    "snapshot": "os",
    "instruction": "Rename the directory.",
    "source": "https://example.org",
    "config": [{"type": "execute", "parameters": {"command": ["mkdir", "x"]}}],
    "related_apps": ["os"],
    "evaluator": {"func": "exact_match", "result": {"type": "vm_command_line"}, "expected": {"type": "rule"}},
    "proxy": False,
}


def test_a_task_keeps_its_document_as_it_is() -> None:
    task = read_task("os", DOCUMENT)
    assert task.document == DOCUMENT
    assert task.task_digest == digest(DOCUMENT)
    assert (task.domain, task.task_id) == ("os", DOCUMENT["id"])


def test_the_domain_is_the_folder_not_the_snapshot() -> None:
    assert read_task("multi_apps", DOCUMENT | {"snapshot": "chrome"}).domain == "multi_apps"


def test_layout_does_not_change_a_tasks_digest() -> None:
    text = json.dumps(dict(reversed(DOCUMENT.items())), indent=8)
    assert read_task("os", json.loads(text)).task_digest == read_task("os", DOCUMENT).task_digest


@pytest.mark.parametrize("evaluator", [{"func": "infeasible"}, {"func": ["a", "b"], "conj": "or", "result": [{}, {}]}])
def test_evaluators_of_one_or_several_metrics(evaluator: dict[str, Any]) -> None:
    assert read_task("os", DOCUMENT | {"evaluator": evaluator}).document["evaluator"] == evaluator


BAD: list[tuple[dict[str, Any], str]] = [
    ({"id": "a/b"}, "id"),
    ({"id": ""}, "id"),
    ({"id": "a\n"}, "id"),
    ({"id": ".."}, "id"),
    ({"id": 5}, "id"),
    ({"instruction": ""}, "instruction"),
    ({"instruction": None}, "instruction"),
    ({"config": {"type": "execute"}}, "config"),
    ({"config": [{"parameters": {}}]}, "config"),
    ({"config": [{"type": 1}]}, "config"),
    ({"evaluator": {}}, "evaluator.func"),
    ({"evaluator": {"func": 5}}, "evaluator.func"),
    ({"evaluator": None}, "evaluator"),
    ({"proxy": "true"}, "proxy"),
    ({"proxy": 1}, "proxy"),
    ({"proxy": None}, "proxy"),
]


@pytest.mark.parametrize(("change", "field"), BAD)
def test_an_unsound_document_names_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}"):
        read_task("os", DOCUMENT | change)


@pytest.mark.parametrize("field", ["id", "instruction", "evaluator"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: "):
        read_task("os", {key: value for key, value in DOCUMENT.items() if key != field})


def test_config_and_proxy_may_be_absent() -> None:
    bare = {key: value for key, value in DOCUMENT.items() if key not in ("config", "proxy")}
    assert read_task("os", bare).document == bare


TASKS = [
    read_task(domain, DOCUMENT | {"id": f"t{number}", "instruction": f"Do {number}."})
    for number, domain in enumerate(["os", "chrome", "os", "vlc", "gimp"])
]


@given(st.permutations(TASKS))
def test_a_sets_address_does_not_depend_on_order(tasks: list[Task]) -> None:
    assert set_digest(tasks) == set_digest(TASKS)


def test_a_sets_address_depends_on_each_tasks_content_and_place() -> None:
    moved = [TASKS[0].model_copy(update={"domain": "vs_code"}), *TASKS[1:]]
    changed = [read_task("os", TASKS[0].document | {"instruction": "Do it."}), *TASKS[1:]]
    assert len({set_digest(one) for one in (TASKS, moved, changed, TASKS[1:], [*TASKS, TASKS[0]])}) == 5


def test_domains_are_reported_in_osworlds_order_then_by_name() -> None:
    assert sorted(["zoo", "vs_code", "my_domain", "os", "chrome"], key=domain_rank) == [
        "chrome",
        "os",
        "vs_code",
        "my_domain",
        "zoo",
    ]
    assert sorted(reversed(DOMAINS), key=domain_rank) == list(DOMAINS)


def test_a_filter_selects_everything_unless_told_otherwise() -> None:
    assert TaskFilter().model_dump() == {
        "domains": None,
        "ids": None,
        "exclude_ids": [],
        "on_unrunnable": "refuse",
    }


@pytest.fixture(scope="module")
def canonical() -> Path:
    directory = load_settings().osworld_tasks
    if not directory.is_dir():
        pytest.skip(f"no canonical OSWorld tasks in {directory} (ROLLBOOK_SHARED)")
    return directory


def test_every_canonical_task_is_sound(canonical: Path) -> None:
    listed: dict[str, list[str]] = json.loads((canonical / "test_all.json").read_text())
    tasks = [
        read_task(domain, json.loads((canonical / "examples" / domain / f"{task_id}.json").read_text()))
        for domain, ids in listed.items()
        for task_id in ids
    ]
    assert len(tasks) == 369
    assert {task.domain for task in tasks} == set(DOMAINS)
    assert len({task.task_id for task in tasks}) == 369
    assert set_digest(tasks) == set_digest(list(reversed(tasks)))
