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
