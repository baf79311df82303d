"""`rollbook doctor`: missing requirements of this machine and their fixes."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from docker.errors import DockerException

from rollbook.config.findings import DISK_COMFORT_GB, SETUP, Check, Level, disk_level, free_gb, level_of
from rollbook.config.settings import Settings
from rollbook.config.unknown_names import unknown_names
from rollbook.errors import RollbookError
from rollbook.sandboxes.registry import provider_kinds
from rollbook.stack.postgres import binaries
from rollbook.stack.processes import PREFERRED, holder, is_free
from rollbook.stack.servers import temporal_binary
from rollbook.stack.state import StateDir


def python_version() -> tuple[int, int, int]:
    """Version of the Python that runs us."""
    return sys.version_info[:3]


def uv_path() -> str | None:
    """Path of the program uv: beside our Python, or on the PATH."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def available_memory_gb() -> float:
    """Memory that programs can have without swapping."""
    return float(psutil.virtual_memory().available) / 1e9


def bubblewrap_problem() -> str | None:
    """None when bubblewrap can make a sandbox here; `missing`, or its own words."""
    if shutil.which("bwrap") is None:
        return "missing"
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    done = subprocess.run([*argv, "true"], capture_output=True, text=True, timeout=20, check=False)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def kernel_switch(path: str) -> str | None:
    """Value of a file below /proc/sys; None where this kernel has no such switch."""
    return Path(path).read_text().strip() if Path(path).exists() else None


MEMORY_NEEDED_GB = 3.0
MEMORY_COMFORT_GB = 6.0


def check_settings(settings: Settings) -> Check:
    """No `ROLLBOOK_*` name is misspelt."""
    if lines := unknown_names(settings):
        return Check(name="settings", level="warn", found="; ".join(lines), fix="correct the name, or unset it")
    return Check(name="settings", level="ok", found="every ROLLBOOK_* name is known")


def check_python(_: Settings) -> Check:
    """A Python that Rollbook is tested with."""
    version = python_version()
    numbers = ".".join(map(str, version))
    if (3, 11) <= version[:2] <= (3, 13):
        return Check(name="python", level="ok", found=numbers)
    return Check(name="python", level="fail", found=numbers, fix="use Python 3.11, 3.12 or 3.13")


def check_servers(settings: Settings) -> Check:
    """The programs of the servers that `up` starts are installed."""
    programs = []
    if settings.temporal == "embedded":
        programs.append(f"temporal at {temporal_binary()}")
    if settings.database_url is None:
        programs.append(f"postgres at {binaries(settings.state_dir, None)}")
    return Check(name="servers", level="ok", found=", ".join(programs) or "external")


def check_uv(_: Settings) -> Check:
    """uv, which builds the evaluator's environment."""
    if path := uv_path():
        return Check(name="uv", level="ok", found=path)
    return Check(name="uv", level="warn", found="missing: the evaluator's environment cannot be built", fix=SETUP)


def check_sandbox(settings: Settings) -> Check:
    """bubblewrap can confine the evaluator, which is not needed where the settings do without."""
    name = "user namespaces"
    problem = bubblewrap_problem()
    if problem is None:
        return Check(name=name, level="ok", found="bubblewrap works")
    if settings.evaluator_isolation == "none":
        state = f"bubblewrap: {problem}; the evaluator runs unconfined (ROLLBOOK_EVALUATOR_ISOLATION=none)"
        return Check(name=name, level="warn", found=state, fix="confine it before tasks of strangers are run")
    if problem == "missing":
        return Check(name=name, level="fail", found="bubblewrap is missing", fix="apt-get install bubblewrap")
    return Check(name=name, level="fail", found=f"bubblewrap fails: {problem}", fix=_namespace_fix())


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
        if kernel_switch(path) == bad:
            return fix
    return "allow user namespaces (inside a container: run it with --security-opt seccomp=unconfined)"


def check_evaluator(settings: Settings) -> Check:
    """The evaluator's Python environment is there."""
    venv = settings.osworld_venv
    if (venv / "bin" / "python").exists():
        return Check(name="evaluator", level="ok", found=str(venv))
    fix = f"{SETUP}, or `python -m rollbook.osworld.environment`"
    return Check(name="evaluator", level="warn", found=f"its Python environment {venv} is not built", fix=fix)


def check_state_dir(settings: Settings) -> Check:
    """The state directory is ours."""
    name = "state directory"
    if not settings.state_dir.exists():
        return Check(name=name, level="ok", found=f"{settings.state_dir} (made by `rollbook up`)")
    StateDir.of(settings).create()
    return Check(name=name, level="ok", found=str(settings.state_dir))


def check_disk(settings: Settings) -> Check:
    """Room for ledger, histories and artifacts."""
    free = free_gb(settings.state_dir)
    fix = f"free {DISK_COMFORT_GB:.0f} GB there, or move ROLLBOOK_STATE_DIR"
    return Check(name="disk", level=disk_level(free), found=f"{free:.1f} GB free at {settings.state_dir}", fix=fix)


def check_memory(settings: Settings) -> Check:
    """Memory for desktops."""
    available = available_memory_gb()
    amount = f"{available:.1f} GB available for up to {settings.max_desktops} desktops"
    level = level_of(available, MEMORY_NEEDED_GB, MEMORY_COMFORT_GB)
    return Check(name="memory", level=level, found=amount, fix="free memory, or lower ROLLBOOK_MAX_DESKTOPS")


def check_ports(settings: Settings) -> Check:
    """Pinned ports are free or ours; the usual ones are a convenience."""
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
    holders = "; ".join(taken) + ("" if level == "fail" else ": free ones will be chosen")
    return Check(name="ports", level=level, found=holders, fix="unset the ROLLBOOK_*_PORT variable or free the port")


def check_tasks(settings: Settings) -> Check:
    """OSWorld's canonical tasks, which only tests and canonical batches need."""
    tasks = settings.osworld_tasks
    if tasks.is_dir():
        return Check(name="osworld tasks", level="ok", found=str(tasks))
    fix = "set ROLLBOOK_SHARED to the directory that holds osworld/ (only tests and canonical tasks need it)"
    return Check(name="osworld tasks", level="warn", found=f"{tasks} does not exist", fix=fix)


Examination = Callable[[Settings], Check]

EXAMINATIONS: tuple[Examination, ...] = (
    check_settings,
    check_python,
    check_servers,
    check_uv,
    check_sandbox,
    check_evaluator,
    check_state_dir,
    check_disk,
    check_memory,
    check_ports,
    check_tasks,
)


async def doctor(settings: Settings) -> list[Check]:
    """Look at everything the local stack and its desktops need. Changes nothing."""
    return list(await asyncio.gather(*(_guarded(examine, settings) for examine in examinations(settings))))


def examinations(settings: Settings) -> list[Examination]:
    """The checks of this machine, and those of every sandbox provider that the settings enable."""
    providers = [kind for kind in provider_kinds() if kind.enabled(settings)]
    return [*EXAMINATIONS, *(check for kind in providers for check in kind.checks)]


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


async def _guarded(examine: Examination, settings: Settings) -> Check:
    """A check that breaks is a finding too."""
    name = examine.__name__.removeprefix("check_").replace("_", " ")
    try:
        return await asyncio.to_thread(examine, settings)
    except (RollbookError, OSError, DockerException, subprocess.SubprocessError) as error:
        return Check(name=name, level="fail", found=str(error))
