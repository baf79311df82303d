"""Needs of a task: which applications and programs its desktop must have."""

import json
from typing import Any

import pytest

from rollbook.config.settings import load_settings
from rollbook.osworld.needs import ImageManifest, missing_needs, task_needs

CANONICAL = load_settings().osworld_tasks / "examples"
SLIM = ImageManifest(
    schema_version=1,
    programs=frozenset({"bash", "python", "python3", "gedit", "pcmanfm", "gnome-terminal", "socat", "sudo", "tar"}),
    modules=frozenset({"pyautogui", "PIL"}),
)


def task(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"config": list(steps), "evaluator": {"func": "exact_match"}, **more}


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (step("launch", command=["google-chrome", "--remote-debugging-port=1337"]), {"chrome"}),
        (step("launch", command=["/usr/bin/thunderbird"]), {"thunderbird"}),
        (step("launch", command="VLC_VERBOSE=-1 vlc --no-audio 'a; b.mp4'", shell=True), {"vlc"}),
        (step("launch", command=["libreoffice", "--calc", "x"]), {"libreoffice_calc"}),
        (step("launch", command="libreoffice --convert-to csv x.xlsx"), {"libreoffice"}),
        (step("open", path="/home/user/a.XLSX"), {"libreoffice_calc"}),
        (step("open", path="/home/user/Documents"), {"file_manager"}),
        (step("open", path="/home/user/a.unknown"), set()),
        (step("chrome_open_tabs", urls_to_open=["https://x.example"]), {"chrome"}),
        (step("execute", command=["/bin/bash", "-c", "cd /x && git init; code ."]), {"bash", "git", "vscode"}),
        (step("command", command="export A=1\ngsettings set a b", shell=True), {"gsettings"}),
        (step("command", command="echo {CLIENT_PASSWORD} | sudo -S apt install xsel && xsel -bc"), {"sudo", "apt"}),
        (step("execute", command=["python", "-c", "import pyautogui; import time"]), {"python", "python:pyautogui"}),
        (step("execute", command="./setup.sh"), set()),
        (step("execute", command="if [ ! -f x ]; then tar xf y; fi", shell=True), {"tar"}),
        (step("execute", command="echo 'unbalanced"), set()),
        (step("sleep", seconds=1), set()),
    ],
)
def test_needs_of_a_step(one: dict[str, Any], expected: set[str]) -> None:
    assert task_needs(task(one)).keys() == expected
    post = task_needs({"evaluator": {"postconfig": [one]}})
    assert post.keys() == expected
    assert set(post.values()) <= {"evaluator.postconfig[0]"}


def test_needs_of_related_apps_and_getters() -> None:
    evaluator = {
        "func": "x",
        "result": [{"type": "vlc_config"}],
        "expected": {"type": "vm_command_line", "command": "w"},
    }
    needs = task_needs({"related_apps": ["os", "VS Code", "writer"], "evaluator": evaluator})
    assert needs == {"vscode": "related_apps", "libreoffice_writer": "related_apps", "vlc": "evaluator.result"}


def test_missing_needs_name_their_place() -> None:
    wanting = task(step("launch", command=["google-chrome"]), step("launch", command="gedit"), related_apps=["chrome"])
    assert missing_needs(wanting, SLIM) == ["chrome (related_apps)"]
    full = SLIM.model_copy(update={"programs": SLIM.programs | {"google-chrome"}})
    assert missing_needs(wanting, full) == []


@pytest.mark.skipif(not CANONICAL.is_dir(), reason="OSWorld's tasks are not at ROLLBOOK_SHARED")
def test_every_canonical_task_needs_what_it_is_about() -> None:
    checked = 0
    for path in sorted(CANONICAL.glob("*/*.json")):
        document = json.loads(path.read_text())
        needs = task_needs(document)
        related = {str(name).lower() for name in document.get("related_apps", ())} - {"os"}
        assert needs or not related, path
        if path.parent.name in ("chrome", "gimp", "thunderbird", "vlc"):
            assert path.parent.name in needs, path
        if path.parent.name.startswith("libreoffice"):
            assert any(need.startswith("libreoffice") for need in needs), path
        if path.parent.name == "vs_code":
            assert "vscode" in needs, path
        checked += 1
    assert checked == 369
