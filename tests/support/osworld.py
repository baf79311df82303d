"""Shared by the tests of the evaluator's runner: the real environment, a guest double, tasks."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from rollbook.osworld import runner
from rollbook.osworld.runner import PhaseResult, cache_dir

TASK_ID = "00000000-0000-4000-8000-000000000001"
Run = Callable[..., Awaitable[PhaseResult]]


class LeftOver:
    """Finds processes that carry the marker of this test's runs."""

    def __init__(self) -> None:
        self.marker = uuid4()

    def __call__(self) -> list[str]:
        """Their command lines."""
        needle = f"{runner.MARKER}={self.marker.hex}".encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if needle in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(Path(f"/proc/{pid}/cmdline").read_text())
            except OSError:
                continue
        return found


def task(**evaluator: Any) -> dict[str, Any]:
    return {
        "id": TASK_ID,
        "instruction": "Say yes.",
        "config": [],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["ask"]},
            "expected": {"type": "rule", "rules": {"expected": "yes\n"}},
            **evaluator,
        },
    }


def seed(tmp_path: Path, name: str, content: bytes) -> None:
    """Put a file where OSWorld keeps what it has fetched."""
    directory = cache_dir(tmp_path / "attempt", TASK_ID)
    directory.mkdir(parents=True)
    (directory / name).write_bytes(content)


def urls(*wanted: str) -> dict[str, Any]:
    return {"type": "rule", "rules": {"type": "url", "urls": list(wanted)}}


def vm_file(dest: str = "file.txt") -> dict[str, str]:
    return {"type": "vm_file", "path": f"/home/user/{dest}", "dest": dest}
