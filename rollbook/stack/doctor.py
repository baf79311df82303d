"""`rollbook doctor`: what this machine lacks, and how to mend it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module, util
from pathlib import Path
from typing import Literal

import docker
from docker.errors import DockerException, ImageNotFound
from pydantic import BaseModel

from rollbook.errors import RollbookError
from rollbook.settings import PROJECT_ROOT, Settings
from rollbook.stack.docker_engine import engine_fix, engine_problem
from rollbook.stack.ports import PREFERRED, holder, is_free
from rollbook.stack.postgres import binaries
from rollbook.stack.state import StateDir
from rollbook.stack.temporal_server import temporal_binary

Level = Literal["ok", "warn", "fail"]

DISK_NEEDED_GB = 5.0
DISK_COMFORT_GB = 15.0
MEMORY_NEEDED_GB = 3.0
MEMORY_COMFORT_GB = 6.0
SETUP = "run `make setup`"


class Check(BaseModel):
    """One finding. `fail` means that episodes cannot run here; `warn` that something is limited or not made yet."""

    name: str
    level: Level
    found: str
    fix: str | None = None


async def doctor(settings: Settings) -> list[Check]:
    """Look at everything the local stack and its desktops need. Changes nothing."""
    checks: list[Callable[[Settings], Awaitable[Check]]] = [
        _threaded(check_python),
        _threaded(check_servers),
        _threaded(check_uv),
        _threaded(check_engine),
        check_image,
        _threaded(check_sandbox),
        _threaded(check_evaluator),
        _threaded(check_state_dir),
        _threaded(check_disk),
        _threaded(check_memory),
        _threaded(check_ports),
        _threaded(check_tasks),
    ]
    return list(await asyncio.gather(*(_guarded(check, settings) for check in checks)))


def print_checks(checks: list[Check], as_json: bool = False) -> int:
    """Print a table or JSON; the exit code: 1 if something required is missing."""
    failed = any(check.level == "fail" for check in checks)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [check.model_dump() for check in checks]}, indent=1))
        return int(failed)
    for check in checks:
        print(f"{check.level:<5} {check.name:<16} {check.found}")
        if check.fix and check.level != "ok":
            print(f"{'':<22} fix: {check.fix}")
    return int(failed)


def _threaded(check: Callable[[Settings], Check]) -> Callable[[Settings], Awaitable[Check]]:
    async def run(settings: Settings) -> Check:
        return await asyncio.to_thread(check, settings)

    run.__name__ = check.__name__
    return run


async def _guarded(check: Callable[[Settings], Awaitable[Check]], settings: Settings) -> Check:
    """A check that breaks is a finding too."""
    name = check.__name__.removeprefix("check_").replace("_", " ")
    try:
        return await check(settings)
    except (RollbookError, OSError, DockerException, subprocess.SubprocessError) as error:
        return Check(name=name, level="fail", found=str(error))


def check_python(_: Settings) -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check(name="python", level="ok", found=version)
    return Check(name="python", level="fail", found=version, fix="use Python 3.11, 3.12 or 3.13")


def check_servers(settings: Settings) -> Check:
    found = []
    if settings.temporal == "embedded":
        found.append(f"temporal at {temporal_binary()}")
    if settings.database_url is None:
        found.append(f"postgres at {binaries(settings.state_dir, None)}")
    return Check(name="servers", level="ok", found=", ".join(found) or "external")


def check_uv(_: Settings) -> Check:
    beside = Path(sys.executable).parent / "uv"
    path = str(beside) if beside.exists() else shutil.which("uv")
    if path:
        return Check(name="uv", level="ok", found=path)
    return Check(name="uv", level="warn", found="missing: the evaluator's environment cannot be built", fix=SETUP)


def check_engine(_: Settings) -> Check:
    problem = engine_problem()
    if problem is not None:
        return Check(name="docker engine", level="fail", found=problem, fix=engine_fix(problem))
    client = docker.from_env(timeout=10)
    try:
        info = client.info()
    finally:
        client.close()
    found = f"{info['ServerVersion']}, storage {info['Driver']}"
    if info["Driver"] == "vfs":
        return Check(
            name="docker engine",
            level="warn",
            found=f"{found}: every desktop copies the whole image",
            fix="put /var/lib/docker on a file system that overlay2 works on (ext4, xfs)",
        )
    return Check(name="docker engine", level="ok", found=found)


async def check_image(settings: Settings) -> Check:
    name = "desktop image"
    if engine_problem() is not None:
        return Check(name=name, level="warn", found="unknown without an engine")
    tag = settings.desktop_image or await _built_tag()
    if tag is None:
        return Check(name=name, level="warn", found="not built", fix=SETUP)
    return await asyncio.to_thread(_look_for_image, name, tag)


async def _built_tag() -> str | None:
    """The tag that the image builder would give to the image of this checkout."""
    if util.find_spec("rollbook.sandboxes.image") is None:
        return None
    tag = import_module("rollbook.sandboxes.image").image_tag()
    return str(tag)


def _look_for_image(name: str, tag: str) -> Check:
    client = docker.from_env(timeout=10)
    try:
        image = client.images.get(tag)
        return Check(name=name, level="ok", found=f"{tag} ({image.attrs['Size'] / 1e6:.0f} MB)")
    except ImageNotFound:
        return Check(name=name, level="warn", found=f"{tag} is not built yet", fix=SETUP)
    finally:
        client.close()


def check_sandbox(_: Settings) -> Check:
    name = "user namespaces"
    if shutil.which("bwrap") is None:
        return Check(name=name, level="fail", found="bubblewrap is missing", fix="apt-get install bubblewrap")
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    done = subprocess.run([*argv, "true"], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode == 0:
        return Check(name=name, level="ok", found="bubblewrap works")
    return Check(name=name, level="fail", found=f"bubblewrap fails: {done.stderr.strip()}", fix=_namespace_fix())


def _namespace_fix() -> str:
    switches = {
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=15000"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
    for path, (bad, fix) in switches.items():
        if Path(path).exists() and Path(path).read_text().strip() == bad:
            return fix
    return "allow user namespaces (inside a container: run it with --security-opt seccomp=unconfined)"


def check_evaluator(_: Settings) -> Check:
    python = PROJECT_ROOT / ".venv-osworld" / "bin" / "python"
    configured = os.environ.get("ROLLBOOK_OSWORLD_VENV")
    if configured:
        python = Path(configured).expanduser() / "bin" / "python"
    if python.exists():
        return Check(name="evaluator", level="ok", found=str(python.parent.parent))
    fix = f"{SETUP}, or `python -m rollbook.osworld.environment`"
    return Check(name="evaluator", level="warn", found="its Python environment is not built", fix=fix)


def check_state_dir(settings: Settings) -> Check:
    name = "state directory"
    if not settings.state_dir.exists():
        return Check(name=name, level="ok", found=f"{settings.state_dir} (made by `rollbook up`)")
    StateDir.of(settings).create()
    return Check(name=name, level="ok", found=str(settings.state_dir))


def check_disk(settings: Settings) -> Check:
    place = settings.state_dir
    while not place.exists():
        place = place.parent
    free_gb = shutil.disk_usage(place).free / 1e9
    found = f"{free_gb:.1f} GB free at {place}"
    fix = f"free {DISK_COMFORT_GB:.0f} GB there, or move ROLLBOOK_STATE_DIR"
    return Check(name="disk", level=_level(free_gb, DISK_NEEDED_GB, DISK_COMFORT_GB), found=found, fix=fix)


def check_memory(settings: Settings) -> Check:
    available_gb = 0.0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available_gb = int(line.split()[1]) / 1e6
    found = f"{available_gb:.1f} GB available for up to {settings.max_desktops} desktops"
    level = _level(available_gb, MEMORY_NEEDED_GB, MEMORY_COMFORT_GB)
    return Check(name="memory", level=level, found=found, fix="free memory, or lower ROLLBOOK_MAX_DESKTOPS")


def _level(value: float, needed: float, comfort: float) -> Level:
    if value < needed:
        return "fail"
    return "warn" if value < comfort else "ok"


def check_ports(settings: Settings) -> Check:
    state = StateDir.of(settings).read()
    ours = set(state.ports.values()) if state is not None and state.running() else set()
    pinned = {"temporal": settings.temporal_port, "temporal_ui": settings.temporal_ui_port}
    pinned["artifact"] = settings.artifact_port
    taken = []
    level: Level = "ok"
    for name, preferred in PREFERRED.items():
        port = pinned[name] or preferred
        if port not in ours and not is_free(port):
            taken.append(f"{port} ({name}) is taken by {holder(port)}")
            level = "fail" if pinned[name] else level
    if not taken:
        return Check(name="ports", level="ok", found="free or ours")
    found = "; ".join(taken) + ("" if level == "fail" else ": free ones will be chosen")
    return Check(name="ports", level=level, found=found, fix="unset the ROLLBOOK_*_PORT variable or free the port")


def check_tasks(settings: Settings) -> Check:
    tasks = settings.osworld_tasks
    if tasks.is_dir():
        return Check(name="osworld tasks", level="ok", found=str(tasks))
    fix = "set ROLLBOOK_SHARED to the directory that holds osworld/ (only tests and canonical tasks need it)"
    return Check(name="osworld tasks", level="warn", found=f"{tasks} does not exist", fix=fix)
