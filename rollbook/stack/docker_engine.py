"""The local Docker engine: use the one that answers, start the one that is installed, or install it.

Installing and starting happen only as root on Debian or Ubuntu; everybody else is told what to do. An engine that
was there before us is never stopped.
"""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from rollbook.config.settings import Settings
from rollbook.sandboxes.docker.checks import dockerd, engine_fix, engine_problem
from rollbook.stack.children import StackError
from rollbook.stack.processes import ProcessRef, stop_process
from rollbook.stack.state import StateDir

Log = Callable[[str], None]

PACKAGES = ("docker.io", "iptables", "apparmor")
START_TIMEOUT_S = 60.0
_PID_FILE = Path("/var/run/docker.pid")


async def ensure_engine(settings: Settings, log: Log = print) -> None:
    """Return when a Docker engine answers. Raises StackError naming what is missing and the fix."""
    problem = await asyncio.to_thread(engine_problem)
    if problem is None:
        return
    if os.environ.get("DOCKER_HOST") or os.geteuid() != 0:
        raise StackError(f"no Docker engine answers ({problem}): {engine_fix(problem)}")
    if dockerd() is None:
        await asyncio.to_thread(_install, settings, log)
    await asyncio.to_thread(_start, settings, log)
    await _wait_engine(settings)
    log("the Docker engine runs")


async def stop_engine(settings: Settings, log: Log = print) -> None:
    """Stop the engine if it is the one that `ensure_engine` started for this state directory."""
    record = _record(settings)
    try:
        ref = ProcessRef.model_validate_json(record.read_bytes())
    except (FileNotFoundError, ValidationError):
        log("the Docker engine was not started by this stack: left running")
        return
    if ref.alive():
        await stop_process(ref, grace_s=30.0)
        log("the Docker engine is stopped")
    record.unlink(missing_ok=True)


def _record(settings: Settings) -> Path:
    return StateDir.of(settings).root / "engine.json"


def _install(settings: Settings, log: Log) -> None:
    fix = f"run `apt-get install {' '.join(PACKAGES)}`"
    if not settings.install_docker:
        raise StackError(f"Docker is not installed and ROLLBOOK_INSTALL_DOCKER is off: {fix}")
    if shutil.which("apt-get") is None:
        raise StackError("Docker is not installed and this is neither Debian nor Ubuntu: install Docker Engine")
    log(f"installing {', '.join(PACKAGES)} with apt-get")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    for argv in (["apt-get", "update", "-q"], install):
        done = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StackError(f"`{' '.join(argv)}` failed: {done.stdout.strip()[-400:]}")


def _start(settings: Settings, log: Log) -> None:
    log("starting the Docker engine")
    if _systemd():
        subprocess.run(["systemctl", "start", "docker"], check=False, stdin=subprocess.DEVNULL)
        return
    with _log_file(settings).open("ab") as output:
        # --fork: the engine is nobody's child, so it outlives us and leaves no zombie.
        subprocess.run(
            ["setsid", "--fork", dockerd() or "dockerd"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=True,
        )


async def _wait_engine(settings: Settings) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while (problem := await asyncio.to_thread(engine_problem)) is not None:
        if time.monotonic() > deadline:
            raise StackError(f"the Docker engine does not start ({problem}): see {_log_file(settings)}")
        await asyncio.sleep(0.2)
    await asyncio.to_thread(_remember, settings)


def _remember(settings: Settings) -> None:
    """Write down that the engine is ours to stop; systemd's never is."""
    if _systemd():
        return
    with suppress(OSError, ValueError):
        ref = ProcessRef.of(int(_PID_FILE.read_text()))
        if ref is not None:
            _record(settings).write_text(ref.model_dump_json())


def _systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def _log_file(settings: Settings) -> Path:
    return StateDir.made(settings).logs / "dockerd.log"
