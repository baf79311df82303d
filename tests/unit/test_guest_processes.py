"""Commands in the guest: their output is kept when the disk is full, without waiting for background programs."""

import importlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

GUEST = Path(__file__).parents[2] / "infra" / "desktop"


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The guest server's module, which lives outside the package."""
    monkeypatch.syspath_prepend(str(GUEST))
    return importlib.import_module("guest.processes")


def run(processes: Any, script: str, limit: int = 1 << 20, **options: Any) -> Any:
    return processes.run(script, shell=True, timeout_s=20.0, max_output_bytes=limit, **options)


def test_both_outputs_and_the_code(processes: Any) -> None:
    done = run(processes, "echo out; echo err > /dev/stderr; printf '\\377'; exit 3")
    assert (done.output, done.error, done.returncode) == ("out\n�", "err\n", 3)
    merged = run(processes, "echo a; echo b >&2; echo c", merge=True)
    assert (merged.output, merged.error) == ("a\nb\nc\n", "")


def test_output_needs_no_disk(processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp", "SpooledTemporaryFile"):
        monkeypatch.setattr(tempfile, name, full)
    assert run(processes, "echo hello").output == "hello\n"


@pytest.mark.parametrize("size", [65_536, 65_537, 1_000_000])
def test_more_than_a_pipe_holds(processes: Any, size: int) -> None:
    assert len(run(processes, f"head -c {size} /dev/zero").output) == size


def test_the_rest_is_read_and_dropped(processes: Any) -> None:
    done = run(processes, "head -c 3000000 /dev/zero; echo ended >&2", limit=1000)
    assert (len(done.output), done.error) == (1000, "ended\n")


def test_every_last_word_before_the_end_is_there(processes: Any) -> None:
    for number in range(100):
        assert run(processes, f"echo {number}").output == f"{number}\n"


def test_a_program_left_behind_holds_nothing_and_may_go_on_printing(processes: Any, tmp_path: Path) -> None:
    mark, go = tmp_path / "mark", tmp_path / "go"
    later = f"while [ ! -e {go} ]; do sleep 0.02; done; head -c 300000 /dev/zero; echo $? > {mark}"
    done = run(processes, f"echo now; ({later}) &")
    assert done.output == "now\n"
    before = open_files()
    go.touch()
    deadline = time.monotonic() + 20
    while (not mark.exists() or open_files() >= before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert mark.read_text() == "0\n"
    assert open_files() < before


def test_a_command_at_its_limit_is_killed(processes: Any) -> None:
    with pytest.raises(Exception, match=r"timed out after 0\.2 seconds$"):
        processes.run("echo x; sleep 60", shell=True, timeout_s=0.2, max_output_bytes=100)


def test_a_command_that_cannot_be_read_is_no_empty_answer(processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(processes.threading.Thread, "start", refuse)
    with pytest.raises(Exception, match="cannot be read") as caught:
        run(processes, "echo hello")
    assert getattr(caught.value, "status", None) == 500


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
