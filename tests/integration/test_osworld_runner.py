"""The real evaluator in its real environment and cage, against a guest double that fails on demand.

What the double cannot prove (that a desktop is set up and scored, what `docker kill` looks like) is in
test_osworld_desktop.py.
"""

import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import pytest
from aiohttp import web

from rollbook.errors import ConfigError, InvalidInput
from rollbook.osworld import isolation, process
from rollbook.osworld.capabilities import capabilities, survey
from rollbook.osworld.environment import EvaluatorEnv, ensure_environment, verify_unmodified
from rollbook.osworld.runner import PhaseResult, cache_dir, run_phase
from rollbook.sandboxes.provider import Endpoint
from tests.doubles.http_guest import HttpGuest, cdp_browser, cdp_version, command, half, reset, silence, status

TASK_ID = "00000000-0000-4000-8000-000000000001"
Run = Callable[..., Awaitable[PhaseResult]]


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


class LeftOver:
    """Finds processes that carry the marker of this test's runs."""

    def __init__(self) -> None:
        self.marker = uuid4()

    def __call__(self) -> list[str]:
        """Their command lines."""
        needle = f"{process.MARKER}={self.marker.hex}".encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if needle in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(Path(f"/proc/{pid}/cmdline").read_text())
            except OSError:
                continue
        return found


@pytest.fixture
def left_over(monkeypatch: pytest.MonkeyPatch) -> LeftOver:
    left = LeftOver()
    monkeypatch.setattr(process, "uuid4", lambda: left.marker)
    return left


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


async def test_the_environment_is_the_published_one_and_building_again_changes_nothing(env: EvaluatorEnv) -> None:
    lines: list[str] = []
    assert await ensure_environment(log=lines.append) == env
    assert lines == []
    assert env.desktop_env == "1.0.2"
    assert env.revision.startswith("desktop_env-1.0.2-r")
    verify_unmodified(env.python.parent.parent)


def test_a_changed_file_is_noticed(env: EvaluatorEnv, tmp_path: Path) -> None:
    site = next(env.python.parent.parent.glob("lib/python3.*/site-packages"))
    copy = tmp_path / "venv" / site.relative_to(env.python.parent.parent)
    for name in ("desktop_env", "desktop_env-1.0.2.dist-info"):
        shutil.copytree(site / name, copy / name)
    verify_unmodified(tmp_path / "venv")
    metric = copy / "desktop_env" / "evaluators" / "metrics" / "general.py"
    metric.write_text(metric.read_text() + "\n")
    with pytest.raises(ConfigError, match=r"general\.py is not the published file"):
        verify_unmodified(tmp_path / "venv")


async def test_the_committed_table_is_what_desktop_env_has(env: EvaluatorEnv) -> None:
    assert await survey(env) == capabilities()


async def test_scores_are_canonical(run: Run, guest: HttpGuest) -> None:
    solved = await run("evaluate", task())
    assert (solved.status, solved.value, solved.score_type) == ("ok", 1.0, "float"), solved
    assert (solved.guest_failed, solved.guest_alive_after, solved.nonce) == (False, True, guest.nonce)
    assert solved.exchanges == {5000: {"ok": 2}}
    assert guest.paths() == ["/execute"]
    guest.routes["/execute"] = command("no\n")
    assert (await run("evaluate", task())).value == 0.0


@pytest.mark.parametrize(
    ("func", "action", "value"),
    [("infeasible", "FAIL", 1), ("infeasible", "DONE", 0), ("infeasible", None, 0), ("exact_match", "FAIL", 0)],
)
async def test_the_terminal_action_is_the_last_of_the_history(
    run: Run, func: str, action: str | None, value: int
) -> None:
    result = await run("evaluate", task(func=func), terminal_action=action)
    assert (result.status, result.value, result.score_type) == ("ok", value, "int")


async def test_a_fraction_passes_through(run: Run, guest: HttpGuest) -> None:
    guest.routes["/execute"] = command("abcd")
    half_right = {"type": "rule", "rules": {"expected": "abxy"}}
    assert (await run("evaluate", task(func="fuzzy_match", expected=half_right))).value == 0.5
    both = task(
        func=["exact_match", "fuzzy_match"],
        result=[{"type": "vm_command_line", "command": ["ask"]}] * 2,
        expected=[{"type": "rule", "rules": {"expected": "abcd"}}, half_right],
    )
    assert (await run("evaluate", both)).value == 0.75


async def test_evaluate_does_not_run_the_postconfig_again(run: Run, guest: HttpGuest) -> None:
    steps = [{"type": "execute", "parameters": {"command": ["save"]}}]
    with_steps = task(postconfig=steps)
    assert (await run("postconfig", with_steps)).value is True
    assert guest.paths() == ["/setup/execute"]
    assert (await run("evaluate", with_steps)).value == 1.0
    assert guest.paths() == ["/setup/execute", "/execute"]
    assert with_steps["evaluator"]["postconfig"] == steps


async def test_setup_fills_in_screen_and_password(run: Run, guest: HttpGuest) -> None:
    words = ["{CLIENT_PASSWORD}", "{SCREEN_WIDTH}", "{SCREEN_HEIGHT_HALF}"]
    setup = {**task(), "config": [{"type": "execute", "parameters": {"command": words}}]}
    result = await run("prepare", setup, client_password="s3cret", screen=(1280, 720))
    assert result.status == "ok"
    sent = next(body for _, path, _, body in guest.seen if path == "/setup/execute")
    assert json.loads(sent)["command"] == ["s3cret", "1280", "360"]
    assert "s3cret" not in await asyncio.to_thread(result.log_path.read_text)


async def test_a_failing_setup_step_is_named(run: Run, guest: HttpGuest) -> None:
    guest.routes["/setup/open_file"] = status(404)
    setup = {**task(), "config": [{"type": "open", "parameters": {"path": "/no/such/file"}}]}
    result = await run("prepare", setup)
    assert (result.status, result.value, result.error_type, result.guest_failed) == ("failed", None, "Exception", False)
    assert "Setup step 1 failed: _open_setup" in result.error_message
    assert [(e.path, e.status) for e in result.failures] == [("/setup/open_file", 404)]


async def test_a_500_that_setup_only_logs_shows_in_the_record(run: Run, guest: HttpGuest) -> None:
    guest.routes["/setup/launch"] = status(500)
    setup = {**task(), "config": [{"type": "launch", "parameters": {"command": ["no-such-program"]}}]}
    result = await run("prepare", setup)
    assert (result.status, result.value, result.guest_failed) == ("ok", True, False)
    assert [(e.path, e.outcome, e.status) for e in result.failures] == [("/setup/launch", "http_5xx", 500)]
    lines = (await asyncio.to_thread(result.exchange_log_path.read_text)).splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["/terminal", "/setup/launch"]


@pytest.mark.parametrize("fault", [status(500), status(502), reset, half])
async def test_an_evaluator_that_could_not_look_gives_no_score(run: Run, guest: HttpGuest, fault: Any) -> None:
    guest.routes["/execute"] = fault
    result = await run("evaluate", task())
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestExchangeFailed")
    assert (result.guest_failed, result.guest_alive_after) == (True, True)


async def test_a_reset_is_not_outlived_by_a_retry_that_works(run: Run, guest: HttpGuest) -> None:
    """Canonical `get_file` tries three times and says nothing of the first two."""

    async def first_time(request: web.BaseRequest) -> web.StreamResponse:
        guest.routes["/file"] = b"yes\n"
        return await reset(request)

    guest.routes["/file"] = first_time
    result = await run("evaluate", task(func="compare_text_file", result=vm_file(), expected=vm_file()))
    assert (result.status, result.value, result.guest_failed) == ("failed", None, True)


async def test_a_guest_that_dies_during_evaluation_ends_it_at_once(run: Run, guest: HttpGuest) -> None:
    async def die(request: web.BaseRequest) -> web.StreamResponse:
        asyncio.get_running_loop().call_soon(lambda: dying.append(asyncio.ensure_future(guest.die())))
        await asyncio.sleep(3600)
        return web.Response()

    dying: list[asyncio.Future[None]] = []
    guest.routes["/file"] = die
    result = await run("evaluate", task(func="compare_text_file", result=vm_file(), expected=vm_file()))
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestLost")
    assert (result.guest_failed, result.guest_alive_after) == (True, False)
    await asyncio.gather(*dying)


async def test_a_guest_that_is_gone_before_is_never_scored(run: Run, guest: HttpGuest) -> None:
    await guest.die()
    result = await run("evaluate", task(func="infeasible"), terminal_action="FAIL")
    assert (result.value, result.error_type, result.guest_alive_after) == (None, "GuestLost", False)
    assert await asyncio.to_thread(result.log_path.read_text) == ""


async def test_another_guest_in_its_place_is_never_scored(run: Run, guest: HttpGuest) -> None:
    before = await run("evaluate", task(), expected_nonce="nonce-of-another-boot")
    assert (before.value, before.error_type, before.guest_failed) == (None, "GuestReplaced", True)
    assert guest.paths() == []

    async def reboot(_: web.BaseRequest) -> web.StreamResponse:
        guest.nonce = "nonce-after-a-reboot"
        return web.json_response(command("yes\n"))

    guest.routes["/execute"] = reboot
    during = await run("evaluate", task())
    assert (during.value, during.error_type, during.guest_failed) == (None, "GuestReplaced", True)


async def test_a_404_and_a_closed_browser_are_facts(run: Run, guest: HttpGuest) -> None:
    guest.routes["/execute"] = status(404)
    missing = await run("evaluate", task())
    assert (missing.status, missing.value) == ("ok", 0.0)
    player = task(
        func="is_vlc_playing",
        result={"type": "vlc_playing_info", "dest": "status.xml"},
        expected={"type": "rule", "rules": {"type": "file_name", "file_name": "a"}},
    )
    closed = await run("evaluate", player)
    assert (closed.status, closed.guest_failed, closed.guest_alive_after) == ("failed", False, True)
    assert closed.error_type == "ConnectionError", closed.error_message


async def test_an_exception_is_an_error_and_never_a_zero(run: Run) -> None:
    broken = task(expected={"type": "rule", "rules": {}})
    result = await run("evaluate", broken)
    assert (result.status, result.value, result.error_type, result.error_message) == (
        "failed", None, "KeyError", "'expected'",
    )  # fmt: skip
    assert "exact_match" in result.traceback
    unknown = await run("evaluate", task(func="no_such_metric"))
    assert (unknown.value, unknown.error_type) == (None, "AttributeError")


async def test_a_package_that_is_not_there_is_an_error_and_never_a_one(run: Run, guest: HttpGuest) -> None:
    """Without librosa `compare_audios` takes two unreadable files for equal: 1.0 upstream."""
    guest.routes["/file"] = b"RIFF"
    result = await run("evaluate", task(func="compare_audios", result=vm_file("a.wav"), expected=vm_file("b.wav")))
    assert (result.status, result.value, result.error_type) == ("failed", None, "MissingPackage")
    assert "librosa.load" in result.error_message


async def test_a_file_that_could_not_be_kept_is_an_error_and_never_a_zero(run: Run, guest: HttpGuest) -> None:
    guest.routes["/file"] = b"yes\n"
    result = await run(
        "evaluate", task(func="compare_text_file", result=vm_file("no/such/directory/x"), expected=vm_file("b"))
    )
    assert (result.status, result.value, result.error_type) == ("failed", None, "LocalFileError")


async def test_a_deadline_ends_the_whole_process_tree(run: Run, guest: HttpGuest, left_over: LeftOver) -> None:
    guest.routes["/execute"] = silence
    ticks: list[int] = []
    result = await run("evaluate", task(), timeout_s=4.0, on_tick=lambda: ticks.append(1))
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
from rollbook.osworld import process
from rollbook.osworld.environment import ensure_environment
from rollbook.osworld.runner import run_phase
from rollbook.sandboxes.provider import Endpoint
from tests.doubles.http_guest import HttpGuest, silence
from tests.integration.test_osworld_runner import task

async def ask(request):
    print("asked", flush=True)
    return await silence(request)

async def main():
    process.uuid4 = lambda: UUID(sys.argv[1])
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
        stray = process.KillableProcess(
            ["sh", "-c", "setsid sleep 300 & echo started; wait"],
            stdin=b"", log=log, cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        async with stray:
            async with asyncio.timeout(10):
                while not any("sleep" in line for line in left_over()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
    assert left_over() == []


async def test_playwright_reaches_the_browser_through_bridge_and_forwarder(run: Run, guest: HttpGuest) -> None:
    tabs = task(func="is_expected_tabs", result={"type": "open_tabs_info"}, expected=urls("https://example.org"))
    async with HttpGuest() as browser:
        browser.routes |= {"/json/version/": cdp_version, "/devtools/browser/1": cdp_browser}
        endpoints = {5000: Endpoint(guest.url), 9222: Endpoint(browser.url)}
        result = await run("evaluate", tabs, endpoints=endpoints)
        hosts = {headers["Host"] for _, _, headers, _ in browser.seen}
    assert (result.status, result.value) == ("ok", 0), result
    assert result.exchanges[9222] == {"ok": 2}, "the version and one WebSocket"
    assert hosts == {"localhost"}
    lines = (await asyncio.to_thread(result.exchange_log_path.read_text)).splitlines()
    sockets = [json.loads(line) for line in lines if json.loads(line)["method"] == "WEBSOCKET"]
    assert [(socket["status"], socket["received_bytes"] > 0) for socket in sockets] == [(101, True)]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_code_of_the_agent_is_locked_in(run: Run, guest: HttpGuest, tmp_path: Path) -> None:
    """Canonical `check_python_file_by_test_suite` imports what the agent wrote."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the worker's own")
    secret.chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as service:
        guest.routes["/file"] = _SPY.format(
            port=service.getsockname()[1], secret=str(secret), home=str(Path.home() / ".bashrc")
        ).encode()
        suite = task(
            func="check_python_file_by_test_suite",
            result=vm_file("agent.py"),
            expected={"type": "cloud_file", "path": "https://files.example.org/suite.py", "dest": "suite.py"},
        )
        seed(tmp_path, "suite.py", b"import agent\ndef test():\n    return agent.found == []\n")
        result = await run("evaluate", suite)
    log = await asyncio.to_thread(result.log_path.read_text)
    assert (result.isolation, result.network) == ("bwrap", "none"), result.isolation_reason
    assert (result.status, result.value) == ("ok", 1.0), log
    assert "spy: []" in log


_SPY = """
import os, socket
found = []
if os.getuid() != 65534 or os.getgid() != 65534:
    found.append(f"user {{os.getuid()}}:{{os.getgid()}}")
for address in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
    try:
        socket.create_connection(address, timeout=1).close()
        found.append(f"reached {{address}}")
    except OSError:
        pass
for path in ({secret!r}, "/etc/shadow", {home!r}, "/var/run/docker.sock"):
    if os.path.exists(path):
        found.append(f"sees {{path}}")
for path in ("/usr/x", "/x", "/run/inside/x", "/etc/x"):
    try:
        open(path, "w").close()
        found.append(f"writes {{path}}")
    except OSError:
        pass
if any(name.startswith(("TEMPORAL", "E2B", "ROLLBOOK_D")) for name in os.environ):
    found.append("environment")
if len([p for p in os.listdir("/proc") if p.isdigit()]) > 5:
    found.append("processes")
print("spy:", found)
"""


async def test_an_evaluator_that_eats_memory_is_ended(
    run: Run, guest: HttpGuest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_over: LeftOver
) -> None:
    monkeypatch.setenv("ROLLBOOK_EVALUATOR_MEMORY_BYTES", str(2**29))
    guest.routes["/file"] = b"import time\nheld = b'x' * 2**30\ntime.sleep(60)\n"
    suite = task(
        func="check_python_file_by_test_suite",
        result=vm_file("agent.py"),
        expected={"type": "cloud_file", "path": "https://files.example.org/suite.py", "dest": "suite.py"},
    )
    seed(tmp_path, "suite.py", b"import agent\ndef test():\n    return True\n")
    result = await run("evaluate", suite)
    assert (result.status, result.value, result.error_type) == ("failed", None, "MemoryLimit")
    assert not result.guest_failed
    assert left_over() == []


async def test_a_seeded_download_reaches_the_guest_without_a_network(
    run: Run, guest: HttpGuest, tmp_path: Path
) -> None:
    url, content = "https://files.example.org/deck.pptx", os.urandom(3_000_000)
    seed(tmp_path, f"{uuid5(NAMESPACE_URL, url)}_deck.pptx", content)
    guest.routes["/setup/upload"] = {"ok": True}
    files = [{"url": url, "path": "/home/user/deck.pptx"}]
    result = await run("prepare", {**task(), "config": [{"type": "download", "parameters": {"files": files}}]})
    assert (result.status, result.downloads) == ("ok", ()), result
    sent = next(body for _, path, _, body in guest.seen if path == "/setup/upload")
    assert content in sent
    assert b'name="file_path"\r\n\r\n/home/user/deck.pptx' in sent


async def test_a_file_still_to_fetch_opens_the_network_of_the_machine(run: Run) -> None:
    wanting = task(expected={"type": "cloud_file", "path": "http://127.0.0.1:1/gold.txt", "dest": "gold.txt"})
    result = await run("evaluate", wanting)
    assert (result.network, result.downloads) == ("host", ("http://127.0.0.1:1/gold.txt",))
    assert (result.status, result.value, result.error_type) == ("failed", None, "ConnectionError")
    assert not result.guest_failed


async def test_without_bubblewrap_the_result_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_found", {})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    result = await run("evaluate", task())
    assert (result.value, result.isolation, result.network) == (1.0, "none", "host")
    assert "bwrap is not installed" in result.isolation_reason
    monkeypatch.setenv("ROLLBOOK_EVALUATOR_ISOLATION", "bwrap")
    with pytest.raises(ConfigError, match="bubblewrap does not work"):
        await run("evaluate", task())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"endpoints": {}}, "endpoints: port 5000"),
        ({"terminal_action": "WAIT"}, "terminal_action"),
        ({"task": {"id": TASK_ID, "instruction": "x"}}, r"task\.evaluator"),
        ({"task": {**task(), "id": "../x"}}, r"task\.id"),
    ],
)
async def test_arguments_that_cannot_be_right_are_refused(run: Run, changes: dict[str, Any], field: str) -> None:
    given = changes.pop("task", task())
    with pytest.raises(InvalidInput, match=field):
        await run("evaluate", given, **changes)


def seed(tmp_path: Path, name: str, content: bytes) -> None:
    """Put a file where OSWorld keeps what it has fetched."""
    directory = cache_dir(tmp_path / "attempt", TASK_ID)
    directory.mkdir(parents=True)
    (directory / name).write_bytes(content)


def urls(*wanted: str) -> dict[str, Any]:
    return {"type": "rule", "rules": {"type": "url", "urls": list(wanted)}}


def vm_file(dest: str = "file.txt") -> dict[str, str]:
    return {"type": "vm_file", "path": f"/home/user/{dest}", "dest": dest}
