"""Resources that the isolated evaluator can reach, and those that it cannot."""

import asyncio
import json
import os
import shutil
import socket
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import pytest

from rollbook.errors import ConfigError
from rollbook.guest.http import Endpoint
from rollbook.osworld import isolation
from rollbook.osworld.environment import EvaluatorEnv
from tests.doubles.http_guest import HttpGuest, cdp_browser, cdp_version
from tests.support.osworld import (
    LeftOver,
    Run,
    seed,
    task,
    urls,
    vm_file,
)


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
async def test_code_of_the_agent_is_locked_in(
    run: Run, guest: HttpGuest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canonical `check_python_file_by_test_suite` imports what the agent wrote."""
    monkeypatch.setenv("ANY_MODEL_KEY", key := "sk-of-the-worker-0123456789")
    secret = tmp_path / "secret.txt"
    secret.write_text("the worker's own")
    secret.chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as service:
        guest.routes["/file"] = _SPY.format(
            port=service.getsockname()[1], secret=str(secret), home=str(Path.home() / ".bashrc"), key=key
        ).encode()
        suite = task(
            func="check_python_file_by_test_suite",
            result=vm_file("agent.py"),
            expected={"type": "cloud_file", "path": "https://files.example.org/suite.py", "dest": "suite.py"},
        )
        seed(tmp_path, "suite.py", b"import agent\ndef test():\n    return agent.found == []\n")
        result = await run("evaluate", suite)
    log = await asyncio.to_thread(result.log_path.read_text)
    assert result.isolation == "bwrap", result.isolation_reason
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
if any(name.startswith(("TEMPORAL", "E2B", "ROLLBOOK_D")) for name in os.environ) or {key!r} in os.environ.values():
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


async def test_without_bubblewrap_the_result_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_found", {})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = await run("evaluate", task())
    assert (result.value, result.isolation) == (1.0, "none")
    assert "bwrap is not installed" in result.isolation_reason
    monkeypatch.setenv("ROLLBOOK_EVALUATOR_ISOLATION", "bwrap")
    with pytest.raises(ConfigError, match="bubblewrap does not work"):
        await run("evaluate", task())


async def test_root_does_not_evaluate_without_a_cage_unless_told_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_found", {})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match=r"root.*ROLLBOOK_EVALUATOR_ISOLATION=none"):
        await run("evaluate", task())
    monkeypatch.setenv("ROLLBOOK_EVALUATOR_ISOLATION", "none")
    assert (await run("evaluate", task())).isolation == "none"


@pytest.mark.parametrize("bwrap", ["exec sleep 60", "kill -9 $$", "exit 137"])
async def test_a_trial_without_a_result_is_not_remembered(
    env: EvaluatorEnv, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bwrap: str
) -> None:
    monkeypatch.setattr(isolation, "_found", {})
    monkeypatch.setattr(isolation, "PROBE_TIMEOUT_S", 1.0)
    stand_in = tmp_path / "bwrap"
    stand_in.write_text(f"#!/bin/sh\n{bwrap}\n")
    stand_in.chmod(0o755)
    with monkeypatch.context() as busy:
        busy.setattr(isolation.Isolation, "command", lambda *_: [str(stand_in), "last"])
        busy.setattr(shutil, "which", lambda name: str(stand_in))
        with pytest.raises(ConfigError, match="trial of bubblewrap"):
            await isolation.choose_isolation(env)
    assert isolation._found == {}
    with monkeypatch.context() as refused:
        stand_in.write_text("#!/bin/sh\necho bwrap: no permission\nexit 1\n")
        refused.setattr(isolation.Isolation, "command", lambda *_: [str(stand_in), "last"])
        refused.setattr(shutil, "which", lambda name: str(stand_in))
        assert await isolation.working_isolation(env) == isolation.Isolation("none", "bwrap: no permission")
