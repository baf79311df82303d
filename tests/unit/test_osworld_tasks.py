"""Checks of a task without a desktop: names the evaluator lacks, files it would fetch."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from rollbook.osworld import runner
from rollbook.osworld.cache_files import missing_downloads
from rollbook.osworld.capabilities import validate_task
from rollbook.osworld.runner import LOG_LIMIT, tidy_log
from rollbook.redaction import MARK, SecretRegistry

URL = "https://files.example.org/a/report.docx?download=true"


def task(**evaluator: Any) -> dict[str, Any]:
    return {
        "id": "00000000-0000-4000-8000-000000000001",
        "instruction": "Do it.",
        "config": [{"type": "execute", "parameters": {"command": ["true"]}}],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["true"]},
            "expected": {"type": "rule", "rules": {"expected": ""}},
            **evaluator,
        },
    }


def test_a_sound_task_has_no_problems() -> None:
    assert validate_task(task()) == []
    assert validate_task(task(func="infeasible", result={}, expected={})) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"func": "no_such_metric"}, "evaluator.func: desktop_env 1.0.2 has no metric 'no_such_metric'"),
        ({"func": "compare_audios"}, "evaluator.func: metric compare_audios needs librosa"),
        ({"func": ["exact_match", "infeasible"]}, "evaluator.func: infeasible must stand alone"),
        ({"func": []}, "evaluator.func: must name at least one metric"),
        ({"func": ["exact_match"]}, "evaluator.result: must be a list where evaluator.func is one"),
        ({"func": ["exact_match"], "result": [], "expected": []}, "evaluator.result: is missing"),
        ({"result": {"type": "nowhere"}}, "evaluator.result.type: desktop_env 1.0.2 has no getter 'nowhere'"),
        ({"expected": {"type": "googledrive_file"}}, "evaluator.expected.type: getter googledrive_file needs pydrive"),
        ({"conj": "xor"}, "evaluator.conj: 'xor' is neither and nor or"),
        ({"postconfig": [{"type": "dance", "parameters": {}}]}, "evaluator.postconfig[0].type: desktop_env 1.0.2 has"),
        ({"postconfig": {}}, "evaluator.postconfig: must be a list"),
    ],
)
def test_a_problem_of_the_evaluator_names_its_field(change: dict[str, Any], problem: str) -> None:
    assert any(line.startswith(problem) for line in validate_task(task(**change))), validate_task(task(**change))


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"type": "tidy_desktop", "parameters": {}}, "config[0].type: desktop_env 1.0.2 has no setup type"),
        ({"type": "download", "parameters": {}}, "config[0].parameters.files: is missing"),
        ({"type": "sleep", "parameters": {"minutes": 1}}, "config[0].parameters.minutes: setup type sleep takes"),
        ({"type": "sleep"}, "config[0]: must be an object with type and parameters"),
        ({"type": ["sleep"], "parameters": {}}, "config[0].type: desktop_env 1.0.2 has no setup type"),
        ("sleep", "config[0]: must be an object"),
    ],
)
def test_a_problem_of_the_setup_names_its_field(step: Any, problem: str) -> None:
    problems = validate_task({**task(), "config": [step]})
    assert any(line.startswith(problem) for line in problems), problems


def test_what_a_setup_would_fetch_is_known_and_a_seeded_cache_needs_nothing(tmp_path: Path) -> None:
    wanting = {
        **task(),
        "config": [{"type": "download", "parameters": {"files": [{"url": URL, "path": "/home/user/in.docx"}]}}],
    }
    assert [file.url for file in missing_downloads(wanting, "prepare", tmp_path)] == [URL]
    (tmp_path / f"{uuid.uuid5(uuid.NAMESPACE_URL, URL)}_in.docx").write_bytes(b"x")
    assert missing_downloads(wanting, "prepare", tmp_path) == ()


def test_what_an_evaluation_would_fetch_is_known(tmp_path: Path) -> None:
    one = task(expected={"type": "cloud_file", "path": URL, "dest": "gold.docx"})
    assert [file.url for file in missing_downloads(one, "evaluate", tmp_path)] == [URL]
    assert missing_downloads(one, "prepare", tmp_path) == ()
    (tmp_path / "gold.docx").write_bytes(b"x")
    assert missing_downloads(one, "evaluate", tmp_path) == ()
    several = task(
        func=["exact_match"],
        result=[{"type": "vm_file", "path": "/a", "dest": "a"}],
        expected=[{"type": "cloud_file", "multi": True, "path": [URL, URL + "2"], "dest": ["gold.docx", "b"]}],
    )
    assert [file.url for file in missing_downloads(several, "evaluate", tmp_path)] == [URL + "2"]


def test_a_log_is_bounded_and_keeps_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first" + b"." * (2 * LOG_LIMIT) + b"last")
    tidy_log(path)
    text = path.read_text()
    assert text.startswith("first")
    assert text.endswith("last")
    assert "bytes left out" in text
    assert len(text) < LOG_LIMIT + 100


@pytest.mark.parametrize("before", [5, LOG_LIMIT // 2 - 10])
def test_no_part_of_a_secret_stays_in_a_log(tmp_path: Path, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle, and across the place where an oversized log is cut."""
    monkeypatch.setattr(runner, "redact_bytes", (secrets := SecretRegistry()).data)
    secrets.add(key := "sk-0123456789abcdefghij")
    path = tmp_path / "log"
    path.write_text("." * before + key + "." * (LOG_LIMIT * (before > 5)) + key[-9:])
    tidy_log(path)
    assert key[:6] not in path.read_text()
    assert (MARK in path.read_text()) is (before == 5)
