"""OSWorld's own setup and evaluators on the real desktop: solved is 1, untouched 0, a dead desktop never a score."""

import asyncio
import glob
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest

from rollbook.config.settings import get_settings
from rollbook.guest.http import Endpoint, read_nonce
from rollbook.osworld.environment import EvaluatorEnv, ensure_environment
from rollbook.osworld.runner import PORTS, PhaseResult, run_phase
from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.provider import SandboxSpec

Run = Callable[..., Awaitable[PhaseResult]]


class Desktop:
    """One running desktop and the means to act in it."""

    def __init__(self, sandbox_id: str, endpoints: dict[int, Endpoint], nonce: str) -> None:
        self.sandbox_id = sandbox_id
        self.endpoints = endpoints
        self.nonce = nonce

    async def shell(self, command: str) -> dict[str, Any]:
        """Run a shell command in the guest."""
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            reply = await client.post(f"{self.endpoints[5000].url}/execute", json={"command": command, "shell": True})
            answer: dict[str, Any] = reply.raise_for_status().json()
            return answer


@pytest.fixture(scope="module")
async def env() -> EvaluatorEnv:
    return await ensure_environment(log=lambda line: None)


@pytest.fixture
async def desktop(docker_client: docker.DockerClient, deployment_id: str, desktop_image: str) -> AsyncIterator[Desktop]:
    provider = DockerProvider(deployment_id, max_desktops=8)
    spec = SandboxSpec.model_validate(
        {
            "deployment": deployment_id,
            "rollout": f"b/os/{uuid.uuid4().hex}/0",
            "attempt": 1,
            "execution": "e",
            "image": desktop_image,
            "ready_timeout_s": 120.0,
            "cleanup_timeout_s": 30.0,
            "vnc_port": provider.vnc_port,
        }
    )
    handle = await provider.create(spec)
    endpoints = {port: await provider.endpoint(handle.sandbox_id, port) for port in PORTS.values()}
    yield Desktop(handle.sandbox_id, endpoints, await read_nonce(endpoints[5000], 10.0))
    await provider.stop(handle.sandbox_id)
    await provider.close()


@pytest.fixture
def run(env: EvaluatorEnv, desktop: Desktop, tmp_path: Path) -> Run:
    async def call(phase: Any, task: dict[str, Any], **changes: Any) -> PhaseResult:
        arguments: dict[str, Any] = {
            "endpoints": desktop.endpoints,
            "work_dir": tmp_path / "attempt",
            "terminal_action": "DONE" if phase == "evaluate" else None,
            "screen": (1920, 1080),
            "client_password": "password",
            "timeout_s": 120.0,
            "expected_nonce": desktop.nonce,
            "env": env,
        }
        return await run_phase(phase, task=task, **{**arguments, **changes})

    return call


def canonical(short_id: str) -> dict[str, Any]:
    found = glob.glob(str(get_settings().osworld_tasks / "examples" / "os" / f"{short_id}*.json"))
    if not found:
        pytest.skip("OSWorld's tasks are not there (ROLLBOOK_SHARED)")
    task: dict[str, Any] = json.loads(Path(found[0]).read_text())
    return task


def asking(command: str) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "instruction": "Answer.",
        "config": [],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": command, "shell": True},
            "expected": {"type": "rule", "rules": {"expected": ""}},
        },
    }


@pytest.mark.parametrize(
    ("short_id", "solution"),
    [
        ("f9be0997", "gsettings set org.gnome.desktop.notifications show-banners false"),
        ("e0df059f", "mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2"),
        ("3ce045a0", "gsettings set org.gnome.desktop.interface text-scaling-factor 1.5"),
    ],
)
async def test_a_canonical_task_is_0_untouched_and_1_solved(
    run: Run, desktop: Desktop, short_id: str, solution: str
) -> None:
    task = canonical(short_id)
    prepared = await run("prepare", task)
    assert (prepared.status, prepared.value, prepared.failures) == ("ok", True, ()), prepared
    untouched = await run("evaluate", task)
    assert (untouched.status, untouched.value) == ("ok", 0), untouched
    assert (await desktop.shell(solution))["returncode"] == 0
    assert (await run("postconfig", task)).value is True
    solved = await run("evaluate", task)
    assert (solved.status, solved.value) == ("ok", 1), solved
    assert (await run("evaluate", task, terminal_action="FAIL")).value == 0


@pytest.mark.parametrize(("action", "score"), [("FAIL", 1), ("DONE", 0), (None, 0)])
async def test_an_infeasible_task_wants_fail(run: Run, action: str | None, score: int) -> None:
    result = await run("evaluate", canonical("b3d4a89c"), terminal_action=action)
    assert (result.status, result.value) == ("ok", score)


async def test_what_the_stock_guest_answers_500_is_a_fact_about_what_was_asked_for(run: Run, desktop: Desktop) -> None:
    task = asking("true")
    # in setup a missing program is an error: see the test below
    task["config"] = [{"type": "execute", "parameters": {"command": ["sh", "-c", "exit 3"]}}]
    prepared = await run("prepare", task)
    assert (prepared.status, prepared.value, prepared.guest_failed) == ("ok", True, False)
    task["config"] = []
    task["evaluator"]["result"] = {"type": "vm_command_line", "command": ["no-such-program"]}
    evaluated = await run("evaluate", task)
    assert (evaluated.status, evaluated.value) == ("ok", 0)
    assert [(e.path, e.status, e.control) for e in evaluated.failures] == [("/execute", 500, "passed")]
    await desktop.shell("echo password | sudo -S chmod 0 /usr/bin/true /bin/true")
    evaluated = await run("evaluate", task)
    assert (evaluated.status, evaluated.value, evaluated.error_type) == ("failed", None, "GuestBroken")
    assert evaluated.guest_alive_after is True


# Upstream asks three times, each for as long as an application may take. tests/integration/test_desktop_session.py
# has the answer of the guest itself.
@pytest.mark.slow
async def test_an_application_that_does_not_answer_is_not_a_missing_one(run: Run, desktop: Desktop) -> None:
    """A stopped editor turned a 1 into an admitted 0: its part of the accessibility tree was left out."""
    task = asking("true")
    task["evaluator"] = {
        "func": "check_accessibility_tree",
        "result": {"type": "accessibility_tree"},
        "expected": {"type": "rule", "rules": [{"selectors": ["application[name=gedit]"]}]},
    }
    await desktop.shell("(setsid gedit > /dev/null 2>&1 &)")
    async with asyncio.timeout(60):
        while (await run("evaluate", task)).value != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    await desktop.shell("pkill -STOP -x gedit")
    stopped = await run("evaluate", task)
    assert (stopped.status, stopped.value, stopped.error_type) == ("failed", None, "GuestExchangeFailed"), stopped
    await desktop.shell("pkill -CONT -x gedit; pkill -9 -x gedit")
    closed = await run("evaluate", task)
    assert (closed.status, closed.value) == ("ok", 0), closed


async def test_a_desktop_killed_before_evaluation_is_never_scored(
    run: Run, desktop: Desktop, docker_client: docker.DockerClient
) -> None:
    task = canonical("f9be0997")
    assert (await run("prepare", task)).status == "ok"
    docker_client.containers.get(desktop.sandbox_id).kill()
    result = await run("evaluate", task)
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestLost")
    assert (result.guest_failed, result.guest_alive_after) == (True, False)


async def test_a_desktop_killed_during_evaluation_is_never_scored(
    run: Run, desktop: Desktop, docker_client: docker.DockerClient
) -> None:
    evaluating = asyncio.ensure_future(run("evaluate", asking("touch /tmp/asked; sleep 100")))
    async with asyncio.timeout(60):
        while (await desktop.shell("test -e /tmp/asked"))["returncode"] != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    docker_client.containers.get(desktop.sandbox_id).kill()
    result = await evaluating
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestLost")
    assert (result.guest_failed, result.guest_alive_after) == (True, False)


async def test_a_desktop_that_was_started_again_is_another_one(
    run: Run, desktop: Desktop, docker_client: docker.DockerClient
) -> None:
    container = docker_client.containers.get(desktop.sandbox_id)
    await asyncio.to_thread(container.restart, timeout=1)
    container.reload()
    published = container.ports["5000/tcp"]
    assert published, "port 5000 should be published"
    host_port = published[0]["HostPort"]
    endpoints = {5000: Endpoint(f"http://127.0.0.1:{host_port}")}
    async with asyncio.timeout(60):
        while not await _answers(endpoints[5000]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    result = await run("evaluate", asking("true"), endpoints=endpoints)
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestReplaced")


async def _answers(endpoint: Endpoint) -> bool:
    try:
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            return (await client.get(f"{endpoint.url}/nonce")).status_code == 200
    except httpx.HTTPError:
        return False


async def test_a_setup_that_starts_what_the_image_lacks_fails(run: Run, desktop: Desktop) -> None:
    task = asking("true")
    task["config"] = [{"type": "launch", "parameters": {"command": ["google-chrome", "--remote-debugging-port=1337"]}}]
    result = await run("prepare", task)
    assert (result.status, result.error_type) == ("failed", "NoSuchProgram"), result
    assert "'google-chrome'" in result.error_message
    held = json.loads((await desktop.shell("cat /opt/rollbook/manifest.json"))["output"])
    assert {"gedit", "socat", "python"} <= set(held["programs"])
    assert "google-chrome" not in held["programs"]
