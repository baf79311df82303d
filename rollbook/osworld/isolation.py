"""Isolation of the evaluator's process: bubblewrap where it works, a plain process otherwise.

Isolated: no network but a bridge to the forwarder's unix sockets, a root file system of read-only system
directories, the environment and the attempt's own three directories, its own process tree, user id 65534. As root
the process really takes that id; as an ordinary user (or where root may not do that), in a user namespace.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollbook.config.osworld import evaluator_settings
from rollbook.errors import ConfigError
from rollbook.osworld.environment import EvaluatorEnv
from rollbook.redaction import redact_tail

INSIDE = Path(__file__).parent / "inside"
NOBODY = 65534
PROBE_TIMEOUT_S = 30.0
_KILLED_INSIDE = 128 + 9
"""Exit code of bubblewrap when what it started was killed, for instance for want of memory."""

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "mime.types", "ssl")

Kind = Literal["bwrap", "none"]


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories that one phase works with."""

    root: Path
    cache: Path
    home: Path
    out: Path
    sockets: Path
    """Unix sockets of the forwarder, one per guest port."""


_INSIDE_DIRS = Directories(
    *(Path(p) for p in ("/attempt", "/attempt/cache", "/attempt/home", "/attempt/out", "/run/guest"))
)


@dataclass(frozen=True, slots=True)
class Isolation:
    """A way to start the evaluator."""

    kind: Kind
    reason: str = ""
    """The reason why there is no isolation."""
    user_namespace: bool = True

    @property
    def bridged(self) -> bool:
        """True when there is no network, so that the guest is reached through unix sockets."""
        return self.kind == "bwrap"

    @property
    def drop_root(self) -> bool:
        """True when the process must drop root itself."""
        return self.kind == "bwrap" and not self.user_namespace

    @property
    def owner(self) -> int | None:
        """User that must own the attempt's directories; None: ourselves."""
        return NOBODY if self.drop_root else None

    def inside(self, directories: Directories) -> Directories:
        """The directories as the process sees it."""
        return _INSIDE_DIRS if self.kind == "bwrap" else directories

    def environment(self, directories: Directories) -> dict[str, str]:
        """Return the whole environment of the process: no variable of the worker leaks in."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.inside(directories).home),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHON_DOTENV_DISABLED": "1",  # desktop_env would look for a .env file up from its own directory
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def command(self, env: EvaluatorEnv, directories: Directories) -> list[str]:
        """The command line of the phase's process."""
        python = [str(env.python), "-I", "-B", "-X", "utf8"]
        if self.kind == "none":
            return [*python, str(INSIDE)]
        return [*self._bwrap(env, directories), *python, "/run/inside"]

    def _bwrap(self, env: EvaluatorEnv, directories: Directories) -> list[str]:
        inside = self.inside(directories)
        readable = [*((path, path) for path in _python_directories(env)), (INSIDE, Path("/run/inside"))]
        readable.append((directories.sockets, inside.sockets))
        writable = [(directories.cache, inside.cache), (directories.home, inside.home), (directories.out, inside.out)]
        return [
            *("bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net"),
            *("--die-with-parent", "--new-session", "--hostname", "evaluator", "--cap-drop", "ALL"),
            *self._user(),
            *("--ro-bind", "/usr", "/usr", *_system_directories(), *self._etc()),
            *("--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"),
            *_parents(path for _, path in (*readable, *writable)),
            *(word for source, path in readable for word in ("--ro-bind", str(source), str(path))),
            *(word for source, path in writable for word in ("--bind", str(source), str(path))),
            *("--remount-ro", "/", "--chdir", str(inside.home), "--"),
        ]

    def _user(self) -> tuple[str, ...]:
        if self.user_namespace:
            return ("--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY))
        return ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")

    def _etc(self) -> Iterator[str]:
        yield from _parents([Path("/etc/x")])
        for name in _ETC:
            yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


async def choose_isolation(env: EvaluatorEnv) -> Isolation:
    """The strictest isolation that the setting asks for and this machine can build (found out once per process).

    Raises ConfigError when bubblewrap does not work here and ROLLBOOK_EVALUATOR_ISOLATION is `bwrap`, or `auto` in a
    worker that runs as root: content of an agent is never evaluated as root unless the setting says `none`. Raises it
    too when the trial came to no result; the next call tries again.
    """
    wanted = evaluator_settings().evaluator_isolation
    if wanted == "none":
        return Isolation("none", "ROLLBOOK_EVALUATOR_ISOLATION=none")
    isolation = await working_isolation(env)
    if isolation.kind == "none":
        if wanted == "bwrap":
            raise ConfigError(f"ROLLBOOK_EVALUATOR_ISOLATION=bwrap, but bubblewrap does not work: {isolation.reason}")
        if os.geteuid() == 0:
            raise ConfigError(
                f"bubblewrap does not work ({isolation.reason}), and a worker does not evaluate unconfined as root: "
                "make bubblewrap work (`rollbook doctor` says how), run the worker as an ordinary user, or set "
                "ROLLBOOK_EVALUATOR_ISOLATION=none"
            )
    return isolation


_found: dict[Path, Isolation] = {}


async def working_isolation(env: EvaluatorEnv) -> Isolation:
    """A isolation that was seen to start this environment's Python, or one of kind `none` that says why not.

    Only what is certain is remembered. Raises ConfigError when the trial was too slow or was ended from outside: that
    is a sign of a busy machine, not of bubblewrap.
    """
    if shutil.which("bwrap") is None:
        return Isolation("none", "bwrap is not installed (Debian: apt install bubblewrap)")
    if env.python not in _found:
        _found[env.python] = await _find_isolation(env)
    return _found[env.python]


async def _find_isolation(env: EvaluatorEnv) -> Isolation:
    problem = ""
    for user_namespace in (False, True) if os.geteuid() == 0 else (True,):
        isolation = Isolation("bwrap", user_namespace=user_namespace)
        problem = await _try(isolation, env)
        if not problem:
            return isolation
    return Isolation("none", problem)


_PROBE = """
import os, socket
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
socket.create_server(("127.0.0.1", 5000)).close()
for name in ("cache", "home", "out"):
    open(f"/attempt/{name}/probe", "w").close(); os.unlink(f"/attempt/{name}/probe")
import numpy, requests
from playwright.sync_api import sync_playwright
with sync_playwright():
    pass
"""


async def _try(isolation: Isolation, env: EvaluatorEnv) -> str:
    """Start Python in the isolation as a phase would; the problem, or an empty string. ConfigError: no result."""
    with _probe_directories(isolation.owner) as directories:
        command = [*isolation.command(env, directories)[:-1], "-c", _PROBE]
        process = await asyncio.create_subprocess_exec(
            *command, env=isolation.environment(directories), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = await asyncio.wait_for(process.communicate(), PROBE_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError) as error:
            process.kill()
            await process.wait()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise ConfigError(
                f"the trial of bubblewrap got no answer within {PROBE_TIMEOUT_S:.0f} s: is the machine too busy?"
            ) from None
    if process.returncode is None or process.returncode < 0 or process.returncode == _KILLED_INSIDE:
        raise ConfigError(f"the trial of bubblewrap was ended by a signal (exit code {process.returncode})")
    if process.returncode == 0:
        return ""
    return redact_tail(output.strip(), 500) or f"exit code {process.returncode}"


@contextmanager
def _probe_directories(owner: int | None) -> Iterator[Directories]:
    with tempfile.TemporaryDirectory(prefix="rollbook-") as name:
        root = Path(name)
        directories = Directories(root, root / "cache", root / "home", root / "out", root / "s")
        for directory in (directories.cache, directories.home, directories.out, directories.sockets):
            directory.mkdir(mode=0o755)
            if owner is not None:
                os.chown(directory, owner, owner)
        yield directories


def _system_directories() -> Iterator[str]:
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), name)
        elif path.is_dir():
            yield from ("--ro-bind", name, name)


def _parents(paths: Iterable[Path]) -> Iterator[str]:
    """Directories on the way to the mounts that everybody may pass: bubblewrap's own are private to root."""
    wanted = {parent for path in paths for parent in path.parents}
    for parent in sorted(wanted - {Path("/"), Path("/tmp"), Path("/usr")}):
        yield from ("--perms", "0755", "--dir", str(parent))


def _python_directories(env: EvaluatorEnv) -> list[Path]:
    """The environment, and the installation that its Python comes from where that is not part of /usr."""
    venv = env.python.parent.parent
    wanted = [venv, env.python.resolve().parent.parent]
    for line in (venv / "pyvenv.cfg").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            wanted.append(Path(value.strip()).parent)
    return list(dict.fromkeys(path for path in wanted if not path.is_relative_to("/usr")))
