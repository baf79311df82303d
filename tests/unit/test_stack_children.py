"""A child that died is reported and started again, with growing pauses."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollbook.stack import children
from rollbook.stack.children import Child, Command, Restarter, StackError
from rollbook.stack.state import ChildState


class Script(Child):
    """Runs a Python script; ready when `ready` exists."""

    ready_timeout_s = 10.0
    stop_grace_s = 2.0

    def __init__(self, directory: Path, code: str) -> None:
        super().__init__("script", directory / "script.log")
        self.directory = directory
        self.code = code

    def command(self) -> Command:
        return Command((sys.executable, "-u", "-c", self.code), cwd=self.directory)

    async def probe(self) -> bool:
        return (self.directory / "ready").exists()


def _restarter(directory: Path, code: str) -> Restarter:
    child = Script(directory, code)
    return Restarter(child, ChildState(log=child.log), lambda: None)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a process sends no notification
            await asyncio.sleep(0.02)


async def test_a_killed_child_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "FIRST_PAUSE_S", 0.01)
    restarter = _restarter(tmp_path, "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(60)")
    await restarter.start()
    first = restarter.state.ref
    assert first is not None
    assert restarter.state.phase == "ready"
    first.signal(9)
    await _until(lambda: restarter.state.phase == "ready" and restarter.state.ref not in (None, first))
    assert restarter.state.restarts == 1
    assert restarter.state.last_exit == "signal SIGKILL"
    second = restarter.state.ref
    await restarter.stop()
    assert second is not None
    assert not second.alive()
    assert restarter.state.model_dump()["phase"] == "stopped"


async def test_pauses_grow_while_it_keeps_dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(children, "FIRST_PAUSE_S", 0.01)
    original = Restarter._try_again

    async def spy(self: Restarter, pause_s: float) -> bool:
        pauses.append(pause_s)
        return await original(self, pause_s)

    monkeypatch.setattr(Restarter, "_try_again", spy)
    restarter = _restarter(tmp_path, "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(0.1)")
    await restarter.start()
    await _until(lambda: len(pauses) >= 4)
    await restarter.stop()
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]


async def test_a_first_start_that_fails_is_the_callers(tmp_path: Path) -> None:
    restarter = _restarter(tmp_path, "print('no such luck'); raise SystemExit(3)")
    with pytest.raises(StackError, match=r"exit code 3(.|\n)*no such luck(.|\n)*script\.log"):
        await restarter.start()
    await restarter.stop()


async def test_a_start_that_takes_too_long_leaves_nothing(tmp_path: Path) -> None:
    child = Script(tmp_path, "import time; time.sleep(60)")
    child.ready_timeout_s = 0.3
    with pytest.raises(StackError, match="was not ready after"):
        await child.start()
    assert child.ref is not None
    assert not child.ref.alive()
