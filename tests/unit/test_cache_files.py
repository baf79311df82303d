"""Files that setup and postconfig leave in OSWorld's cache for the evaluator, and files that are refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from rollbook.osworld import cache_files


def test_names_that_steps_write() -> None:
    steps: list[dict[str, Any]] = [
        {"type": "execute", "parameters": {"command": "x", "stdout": "a.out", "stderr": "a.err"}},
        {"type": "command", "parameters": {"command": "x", "stdout": "b.out"}},
        {"type": "command", "parameters": {"command": "x", "stdout": "a.out"}},
        {"type": "launch", "parameters": {"command": "x", "stdout": "never"}},
        {"type": "execute", "parameters": {"stdout": "../up", "stderr": "sub/dir"}},
        {"type": "execute", "parameters": {"stdout": "..", "stderr": ""}},
        {"type": "execute", "parameters": None},
        {"type": "execute"},
    ]
    assert cache_files.written_by(steps) == ["a.out", "a.err", "b.out"]


def test_only_plain_files_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "FILE_LIMIT_BYTES", 10)
    cache = tmp_path / "cache"
    cache_files.restore(cache, {"a.out": b"yes\n", "big": b"x" * 11})
    (tmp_path / "secret").write_bytes(b"secret")
    (cache / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(cache / "pipe")
    (cache / "folder").mkdir()
    assert cache_files.collect(cache, ["a.out", "big", "link", "pipe", "folder", "missing"]) == {"a.out": b"yes\n"}


def test_downloads_have_the_names_that_canonical_code_looks_for(tmp_path: Path) -> None:
    files = [{"url": "https://x.example/a.txt", "path": "/home/user/b.txt"}]
    task: dict[str, Any] = {
        "config": [{"type": "download", "parameters": {"files": files}}, {"type": "login", "parameters": {}}],
        "evaluator": {
            "postconfig": [{"type": "update_browse_history", "parameters": {"history": []}}],
            "result": {"type": "cloud_file", "path": ["u1", "u2", "u3"], "dest": ["one", "../two", "three"]},
            "expected": [{"type": "cloud_file", "path": "u1", "dest": "one"}, {"type": "rule"}],
        },
    }
    (tmp_path / "three").touch()
    prepare, postconfig, evaluate = (
        cache_files.missing_downloads(task, phase, tmp_path) for phase in ("prepare", "postconfig", "evaluate")
    )
    assert [(file.url, file.name[36:]) for file in prepare] == [("https://x.example/a.txt", "_b.txt")]
    assert [file.name for file in postconfig] == ["history_new.sqlite"]
    assert evaluate == (cache_files.Download("u1", "one"),)
