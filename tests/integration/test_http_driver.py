"""The driver on a real desktop: tries of a task's phases that share nothing on the worker's disk."""

import hashlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker
import pytest

from models.contract import Resolved
from models.episode import DesktopRef
from models.evidence import ArtifactRef
from models.spec import contract_of, read_spec
from rollbook.desktop.client import GuestClient
from rollbook.desktop.driver import Files, Job
from rollbook.desktop.http_driver import HttpDriver
from rollbook.errors import (
    DesktopBroken,
    EvaluationInterrupted,
    ProviderUnavailable,
    SandboxLost,
    SetupFailed,
    SetupInterrupted,
)
from rollbook.guest.http import GUEST_PORT, Endpoint, read_nonce
from rollbook.osworld.environment import ensure_environment
from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.provider import SandboxSpec

SPEC = {"task_set": "demo", "policy": {"kind": "noop"}, "action_runtime": "exact-input-2"}
CONTRACT = contract_of(read_spec(SPEC), Resolved())


def says(word: str, file: str) -> dict[str, Any]:
    """A step whose output becomes a file of OSWorld's cache."""
    return {"type": "execute", "parameters": {"command": ["echo", word], "stdout": file}}


def expects(word: str, file: str) -> dict[str, Any]:
    """An evaluator of such a file."""
    return {
        "func": "check_list",
        "result": {"type": "cache_file", "path": file},
        "expected": {"type": "rule", "rules": {"expect": [word]}},
    }


def two_files() -> dict[str, Any]:
    """A task that is scored by what a setup step and a postconfig step printed."""
    before, after = expects("before", "before.out"), expects("after", "after.out")
    both = {key: [before[key], after[key]] for key in before}
    return {
        "id": str(uuid.uuid4()),
        "instruction": "Nothing to do.",
        "config": [says("before", "before.out")],
        "evaluator": {"postconfig": [says("after", "after.out")], **both},
    }


@dataclass
class Bench:
    """A desktop and its driver; each job is another try, on another disk."""

    driver: HttpDriver
    guest: Endpoint
    disk: Path
    kept: dict[str, bytes]

    async def keep(self, files: dict[str, bytes]) -> Files:
        """A store of the test."""
        refs = {}
        for name, data in files.items():
            sha256 = hashlib.sha256(data).hexdigest()
            refs[name] = ArtifactRef(sha256=sha256, size_bytes=len(data), media_type="text/plain")
            self.kept[sha256] = data
        return refs

    def job(self, task: dict[str, Any], files: Files | None = None) -> Job:
        token = uuid.uuid4().hex
        found = {name: self.kept[ref.sha256] for name, ref in (files or {}).items()}
        return Job(task, CONTRACT, self.disk / token, timeout_s=60.0, token=token, files=found)

    async def shell(self, command: str) -> str:
        async with GuestClient(self.guest) as client:
            return (await client.execute(["sh", "-c", command])).output

    async def root(self, command: str) -> None:
        """As the agent does it, with the password that OSWorld gives it."""
        async with GuestClient(self.guest) as client:
            done = await client.execute(["sh", "-c", 'echo password | sudo -S sh -c "$0"', command])
        assert done.returncode == 0, done.error


def quiet(note: str) -> None:
    """No server listens."""


@pytest.fixture
async def bench(
    request: pytest.FixtureRequest,
    docker_client: docker.DockerClient,
    deployment_id: str,
    desktop_image: str,
    tmp_path: Path,
) -> AsyncIterator[Bench]:
    """A desktop; an indirect parameter is its environment."""
    provider = DockerProvider(deployment_id, max_desktops=8)
    spec = SandboxSpec(
        deployment=deployment_id,
        rollout=f"b/os/{uuid.uuid4().hex}/0",
        attempt=1,
        execution="e",
        image=desktop_image,
        vnc_port=provider.vnc_port,
        ready_timeout_s=120.0,
        cleanup_timeout_s=30.0,
        env=getattr(request, "param", {}),
    )
    handle = await provider.create(spec)
    guest = await provider.endpoint(handle.sandbox_id, GUEST_PORT)
    desktop = DesktopRef(
        provider="docker", sandbox_id=handle.sandbox_id, sandbox_key=spec.key, nonce=await read_nonce(guest, 10.0)
    )
    driver = HttpDriver(
        desktop,
        guest,
        await ensure_environment(log=lambda line: None),
        lambda port: provider.endpoint(handle.sandbox_id, port),
    )
    yield Bench(driver, guest, tmp_path, {})
    await driver.close()
    await provider.stop(handle.sandbox_id)
    await provider.close()


async def test_what_commands_printed_reaches_the_evaluator_of_another_try(bench: Bench) -> None:
    """OSWorld's getter `cache_file`: without the files the evaluator cannot look, and says so."""
    task = two_files()
    files = await bench.driver.prepare(bench.job(task), quiet, bench.keep)
    assert await bench.driver.prepare(bench.job(task), quiet, bench.keep) == files, "a repeated try is told the same"
    after = await bench.driver.postconfig(bench.job(task), quiet, bench.keep)
    assert (list(files), list(after)) == (["before.out"], ["after.out"])
    assert set(bench.kept.values()) == {b"before\n", b"after\n"}
    for _ in range(2):
        scored = await bench.driver.evaluate(bench.job(task, files | after), "DONE", quiet)
        assert (scored.score, scored.reason) == (1.0, None), scored.detail
    blind = await bench.driver.evaluate(bench.job(task, files), "DONE", quiet)
    assert (blind.score, str(blind.reason)) == (None, "evaluator_error")
    wrong = replace(bench.job(task), files={"before.out": b"before\n", "after.out": b"other\n"})
    assert (await bench.driver.evaluate(wrong, "DONE", quiet)).score == 0.0


async def test_an_end_of_setup_that_says_nothing_of_its_files_is_an_interrupted_phase(bench: Bench) -> None:
    task = two_files()
    await bench.driver.prepare(bench.job(task), quiet, bench.keep)
    for note in ("", "[]", '{"other": {"sha256": "' + "0" * 64 + '", "size_bytes": 1, "media_type": "x"}}'):
        await bench.root(f"for f in /run/rollbook/records/*.done; do printf '%s' '{note}' > $f; done")
        with pytest.raises(SetupInterrupted):
            await bench.driver.prepare(bench.job(task), quiet, bench.keep)


@pytest.mark.parametrize("forged", [["claimed"], ["claimed", "done"]])
async def test_an_agent_spares_itself_no_postconfig_and_gains_no_attempt(bench: Bench, forged: list[str]) -> None:
    """Two empty files of the desktop's user once made the evaluator look at what postconfig would have taken away."""
    for name in forged:
        await bench.root(f"touch /run/rollbook/records/postconfig.{name}")
    with pytest.raises(DesktopBroken, match="not by us"):  # earns no fresh desktop
        await bench.driver.postconfig(replace(bench.job(two_files()), first_try=True), quiet, bench.keep)
    with pytest.raises(EvaluationInterrupted):
        await bench.driver.postconfig(bench.job(two_files()), quiet, bench.keep)


async def test_a_desktop_without_the_runtimes_tools_fails_setup_and_says_what_is_missing(bench: Bench) -> None:
    """Otherwise every action would fail there, and an honest-looking 0 would be the policy's."""
    await bench.shell(
        'd=$(python -m site --user-site); mkdir -p "$d"; echo \'raise ImportError("taken away")\' > "$d/pyautogui.py"'
    )
    with pytest.raises(SetupFailed, match=r"action_runtime: exact-input-2 needs .* pyautogui.*taken away"):
        await bench.driver.prepare(bench.job(two_files()), quiet, bench.keep)


async def test_an_engine_that_is_away_does_not_leave_a_phase_half_begun(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the query comes after the claim, the next try finds an interrupted phase, and the attempt is lost."""

    async def silent(port: int) -> Endpoint:
        raise ProviderUnavailable("away")

    task = two_files()
    for phase in (bench.driver.prepare, bench.driver.postconfig):
        with monkeypatch.context() as patch:
            patch.setattr(bench.driver, "_endpoint", silent)
            with pytest.raises(ProviderUnavailable):
                await phase(bench.job(task), quiet, bench.keep)
        assert await phase(bench.job(task), quiet, bench.keep)


@pytest.mark.parametrize("bench", [{"ROLLBOOK_GUEST_EXECUTE_TIMEOUT_S": "10"}], indirect=True)
@pytest.mark.parametrize("phase", ["prepare", "postconfig"])
async def test_a_command_of_setup_or_postconfig_that_was_killed_is_not_done(bench: Bench, phase: str) -> None:
    """OSWorld's code logs the guest's 500 and goes on."""
    killed = {"type": "execute", "parameters": {"command": ["sleep", "600"]}}
    task = two_files()
    task["config"] = [killed] if phase == "prepare" else []
    task["evaluator"]["postconfig"] = [killed]
    if phase == "prepare":
        with pytest.raises(SetupFailed, match=r"killed at its limit"):
            await bench.driver.prepare(bench.job(task), quiet, bench.keep)
    else:
        with pytest.raises(DesktopBroken, match=r"killed at its limit"):  # earns no fresh desktop
            await bench.driver.postconfig(replace(bench.job(task), first_try=True), quiet, bench.keep)


async def test_a_picture_of_another_size_is_no_observation(bench: Bench) -> None:
    seen = await bench.driver.observe(screen=(1920, 1080), accessibility_tree=False, terminal=False)
    assert (seen.width, seen.height) == (1920, 1080)
    with pytest.raises(SandboxLost, match="1920"):
        await bench.driver.observe(screen=(1280, 720), accessibility_tree=False, terminal=False)
