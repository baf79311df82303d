"""`egress: auto` against the hand-made classes of OSWorld's tasks."""

import json
from pathlib import Path

import pytest

from models.task import needs_web
from rollbook.config.settings import get_settings

INDEX: Path = get_settings().osworld_tasks / "index.json"


@pytest.mark.skipif(not INDEX.exists(), reason="OSWorld's tasks are not at ROLLBOOK_SHARED")
def test_every_task_with_a_live_website_or_account_is_open() -> None:
    missed = []
    opened = 0
    for row in json.loads(INDEX.read_text()):
        document = json.loads((INDEX.parent / "examples" / row["domain"] / f"{row['id']}.json").read_text())
        reason = needs_web(document)
        opened += bool(reason)
        if row["class"][0] in "LG" and not reason:
            missed.append(row["id"])
    assert missed == []
    assert opened == 74  # 48 with live websites, 8 with a Google account, 18 that fetch something


def test_an_offline_task_stays_closed() -> None:
    task = {"config": [{"type": "launch", "parameters": {"command": ["gedit"]}}], "evaluator": {"func": "infeasible"}}
    assert needs_web(task) == ""


def test_a_page_of_the_guest_itself_is_not_the_web() -> None:
    step = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["http://localhost:8000/", "file:///x.html"]}}
    assert needs_web({"config": [step], "evaluator": {"func": "infeasible"}}) == ""
    step["parameters"] = {"urls_to_open": ["https://example.org"]}
    assert needs_web({"config": [step], "evaluator": {"func": "infeasible"}}) == "setup opens web pages"
