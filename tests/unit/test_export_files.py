"""Files that belong together: killed at any moment, the marker never exists next to files of another set."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import InvalidInput
from rollbook.export.files import FileSet, write_whole

NAMES = ("rows_inputs.jsonl", "rows_failures.jsonl", "rows_metrics.json", "rows.jsonl")


def write_set(directory: Path, content: str) -> None:
    paths = [directory / name for name in NAMES]
    with FileSet(*paths) as files:
        for path in paths:
            files.write(path, content.encode())
        files.publish()


def found_in(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def killed_before(step: int, directory: Path) -> None:
    """Publish, and die by SIGKILL at the given change of the directory."""
    done = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def method(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return change(*arguments, **options)

        return method

    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    Path.unlink = counted(Path.unlink)  # type: ignore[method-assign]
    write_set(directory, "new")


@pytest.mark.parametrize("step", range(6))
def test_a_set_is_never_mixed_under_its_marker(tmp_path: Path, step: int) -> None:
    write_set(tmp_path, "old")
    process = multiprocessing.get_context("fork").Process(target=killed_before, args=(step, tmp_path))
    process.start()
    process.join(30)
    assert process.exitcode == (-signal.SIGKILL if step < 5 else 0)
    left = found_in(tmp_path)
    whole = [{left.get(name) for name in NAMES} == {content} for content in ("old", "new")]
    assert (NAMES[-1] in left) == any(whole)
    assert whole == [step == 0, step == 5]
    write_set(tmp_path, "again")
    assert found_in(tmp_path) == dict.fromkeys(NAMES, "again"), "nothing of the killed one is left"


def test_what_is_not_published_leaves_what_was_there(tmp_path: Path) -> None:
    write_set(tmp_path, "old")
    with FileSet(*(tmp_path / name for name in NAMES)) as files:
        files.write(tmp_path / NAMES[0], b"new")
    assert found_in(tmp_path) == dict.fromkeys(NAMES, "old")


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with FileSet(first, second) as files:
        with pytest.raises(InvalidInput, match="second is being written by another export"):
            write_whole(second, [b"theirs"])
        files.write(first, b"1")
        files.write(second, b"2")
        files.publish()
        write_whole(second, [b"theirs"])  # the own file is in place: no other process waits for it
    assert found_in(tmp_path) == {"first": "1", "second": "theirs"}


def test_a_disk_that_takes_no_more_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the write fails with an error of the system."""
    program = (
        "import resource, sys; from pathlib import Path; from rollbook.export.files import write_whole\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "write_whole(Path(sys.argv[1]), (b'x' * 1000 for _ in range(1000)))"
    )
    target = tmp_path / "rows.jsonl"
    target.write_text("an earlier export")
    done = subprocess.run([sys.executable, "-c", program, str(target)], capture_output=True, text=True, check=False)
    assert "OSError: [Errno 27] File too large" in done.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("rows.jsonl", "an earlier export")]
