"""A deadline, a cancel, or a killed worker: nothing of the evaluator lives on."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from aiohttp import web

from rollbook.osworld import runner
from tests.doubles.http_guest import HttpGuest, silence
from tests.support.osworld import LeftOver, Run, task


async def test_a_deadline_ends_the_whole_process_tree(run: Run, guest: HttpGuest, left_over: LeftOver) -> None:
    guest.routes["/execute"] = silence
    ticks: list[int] = []
    result = await run("evaluate", task(), timeout_s=4.0, on_progress=lambda: ticks.append(1))
    assert (result.status, result.value, result.error_type) == ("timeout", None, "PhaseTimeout")
    assert ticks
    assert left_over() == []


@pytest.mark.parametrize("isolated", ["auto", "none"])
async def test_cancelling_kills_the_evaluator(
    run: Run,
    guest: HttpGuest,
    left_over: LeftOver,
    monkeypatch: pytest.MonkeyPatch,
    isolated: str,
) -> None:
    monkeypatch.setenv("ROLLBOOK_EVALUATOR_ISOLATION", isolated)
    asked = asyncio.Event()

    async def ask(request: web.BaseRequest) -> web.StreamResponse:
        asked.set()
        return await silence(request)

    guest.routes["/execute"] = ask
    running = asyncio.ensure_future(run("evaluate", task()))
    await asyncio.wait_for(asked.wait(), 60)
    assert left_over(), "the evaluator should be running"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert left_over() == []


@pytest.mark.parametrize("isolated", ["auto", "none"])
async def test_the_evaluator_dies_with_a_worker_that_is_killed(
    tmp_path: Path, left_over: LeftOver, isolated: str
) -> None:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _WORKER, left_over.marker.hex, str(tmp_path)),
        env={**os.environ, "ROLLBOOK_EVALUATOR_ISOLATION": isolated},
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert await asyncio.wait_for(worker.stdout.readline(), 60) == b"asked\n"
    assert left_over()
    worker.kill()
    await worker.wait()
    async with asyncio.timeout(10):
        while left_over():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


_WORKER = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from rollbook.osworld import runner
from rollbook.osworld.environment import ensure_environment
from rollbook.osworld.runner import run_phase
from rollbook.guest.http import Endpoint
from tests.doubles.http_guest import HttpGuest, silence
from tests.support.osworld import task

async def ask(request):
    print("asked", flush=True)
    return await silence(request)

async def main():
    runner.uuid4 = lambda: UUID(sys.argv[1])
    async with HttpGuest(routes={"/execute": ask}) as guest:
        await run_phase(
            "evaluate", task=task(), endpoints={5000: Endpoint(guest.url)}, work_dir=Path(sys.argv[2]) / "attempt",
            terminal_action=None, screen=(1920, 1080), client_password="password", timeout_s=60.0,
            expected_nonce=guest.nonce, env=await ensure_environment(print_nothing),
        )

def print_nothing(line):
    pass

asyncio.run(main())
"""


async def test_a_stray_child_of_another_session_is_killed_too(tmp_path: Path, left_over: LeftOver) -> None:
    with (tmp_path / "log").open("wb") as log:
        stray = runner.KillableProcess(
            ["sh", "-c", "setsid sleep 300 & echo started; wait"],
            stdin=b"", log=log, cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        async with stray, asyncio.timeout(10):
            while not any("sleep" in line for line in left_over()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert left_over() == []
