"""The real evaluator's environment against a guest double."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.guest.http import Endpoint
from rollbook.osworld import runner
from rollbook.osworld.environment import EvaluatorEnv, ensure_environment
from rollbook.osworld.runner import PhaseResult, run_phase
from tests.doubles.http_guest import HttpGuest, command
from tests.support.osworld import LeftOver, Run


@pytest.fixture(scope="module")
async def env() -> EvaluatorEnv:
    return await ensure_environment(log=lambda line: None)


@pytest.fixture
async def guest() -> AsyncIterator[HttpGuest]:
    async with HttpGuest() as guest:
        guest.routes["/execute"] = guest.routes["/setup/execute"] = command("yes\n")
        yield guest


@pytest.fixture
def run(env: EvaluatorEnv, guest: HttpGuest, tmp_path: Path) -> Run:
    async def call(phase: Any, task: dict[str, Any], **changes: Any) -> PhaseResult:
        arguments: dict[str, Any] = {
            "endpoints": {5000: Endpoint(guest.url)},
            "work_dir": tmp_path / "attempt",
            "terminal_action": None,
            "screen": (1920, 1080),
            "client_password": "password",
            "timeout_s": 60.0,
            "expected_nonce": guest.nonce,
            "env": env,
        }
        return await run_phase(phase, task=task, **{**arguments, **changes})

    return call


@pytest.fixture
def left_over(monkeypatch: pytest.MonkeyPatch) -> LeftOver:
    left = LeftOver()
    monkeypatch.setattr(runner, "uuid4", lambda: left.marker)
    return left
