"""Judgements of `rollbook doctor` about this machine, the Docker engine aside: one function each."""

from rollbook.config.findings import DISK_COMFORT_GB, SETUP, Check, Level, disk_level, free_gb, level_of
from rollbook.config.settings import Settings
from rollbook.config.unknown_names import unknown_names
from rollbook.stack import facts
from rollbook.stack.ports import PREFERRED, holder, is_free
from rollbook.stack.postgres import binaries
from rollbook.stack.state import StateDir
from rollbook.stack.temporal_server import temporal_binary

MEMORY_NEEDED_GB = 3.0
MEMORY_COMFORT_GB = 6.0


def check_settings(settings: Settings) -> Check:
    """No `ROLLBOOK_*` name is misspelt."""
    if lines := unknown_names(settings):
        return Check(name="settings", level="warn", found="; ".join(lines), fix="correct the name, or unset it")
    return Check(name="settings", level="ok", found="every ROLLBOOK_* name is known")


def check_python(_: Settings) -> Check:
    """A Python that Rollbook is tested with."""
    version = facts.python_version()
    found = ".".join(map(str, version))
    if (3, 11) <= version[:2] <= (3, 13):
        return Check(name="python", level="ok", found=found)
    return Check(name="python", level="fail", found=found, fix="use Python 3.11, 3.12 or 3.13")


def check_servers(settings: Settings) -> Check:
    """The programs of the servers that `up` starts are installed."""
    found = []
    if settings.temporal == "embedded":
        found.append(f"temporal at {temporal_binary()}")
    if settings.database_url is None:
        found.append(f"postgres at {binaries(settings.state_dir, None)}")
    return Check(name="servers", level="ok", found=", ".join(found) or "external")


def check_uv(_: Settings) -> Check:
    """uv, which builds the evaluator's environment."""
    if path := facts.uv():
        return Check(name="uv", level="ok", found=path)
    return Check(name="uv", level="warn", found="missing: the evaluator's environment cannot be built", fix=SETUP)


def check_sandbox(settings: Settings) -> Check:
    """bubblewrap can confine the evaluator, which is not needed where the settings do without."""
    name = "user namespaces"
    problem = facts.bubblewrap_problem()
    if problem is None:
        return Check(name=name, level="ok", found="bubblewrap works")
    if settings.evaluator_isolation == "none":
        found = f"bubblewrap: {problem}; the evaluator runs unconfined (ROLLBOOK_EVALUATOR_ISOLATION=none)"
        return Check(name=name, level="warn", found=found, fix="confine it before tasks of strangers are run")
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
        if facts.kernel_switch(path) == bad:
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
    available = facts.available_memory_gb()
    found = f"{available:.1f} GB available for up to {settings.max_desktops} desktops"
    level = level_of(available, MEMORY_NEEDED_GB, MEMORY_COMFORT_GB)
    return Check(name="memory", level=level, found=found, fix="free memory, or lower ROLLBOOK_MAX_DESKTOPS")


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
    found = "; ".join(taken) + ("" if level == "fail" else ": free ones will be chosen")
    return Check(name="ports", level=level, found=found, fix="unset the ROLLBOOK_*_PORT variable or free the port")


def check_tasks(settings: Settings) -> Check:
    """OSWorld's canonical tasks, which only tests and canonical batches need."""
    tasks = settings.osworld_tasks
    if tasks.is_dir():
        return Check(name="osworld tasks", level="ok", found=str(tasks))
    fix = "set ROLLBOOK_SHARED to the directory that holds osworld/ (only tests and canonical tasks need it)"
    return Check(name="osworld tasks", level="warn", found=f"{tasks} does not exist", fix=fix)
