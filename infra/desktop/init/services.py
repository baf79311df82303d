"""The processes of the desktop, and how one of them is started."""

import os
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from init.accounts import PACKAGE_ROOT, Account

LOG_DIR = Path("/var/log/rollbook")


@dataclass(frozen=True)
class Service:
    """A long-running process.

    `fatal` ends the container when the process ends (the display: every window has gone with it);
    `session` starts the whole session again (the message bus: all programs have lost it);
    anything else is started again by itself. `to_console` sends output to the container's log.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    account: Account | None = None
    fatal: bool = False
    session: bool = False
    to_console: bool = False
    directory: str = "/"


@dataclass
class Running:
    """A started service: its process id, and how often it has been started."""

    service: Service
    pid: int
    started_at: float
    starts: int = field(default=1)


def spawn(service: Service) -> int:
    """Fork and execute; returns the process id. The child leads a session of its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(service)
    except BaseException:
        traceback.print_exc()
    os._exit(127)


def _become(service: Service) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if not service.to_console:
        log = os.open(LOG_DIR / f"{service.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.umask(0o022)
    if service.account is not None:
        os.initgroups(service.account.name, service.account.gid)
        os.setgid(service.account.gid)
        os.setuid(service.account.uid)
    os.chdir(service.directory)
    os.execvpe(service.command[0], service.command, dict(service.environment))


def module(name: str) -> tuple[str, ...]:
    """Command line of one of our own Python modules; run it with `directory=str(PACKAGE_ROOT)`.

    Without the user's own packages (-s): the desktop's user could put code there.
    """
    return ("/usr/bin/python3", "-s", "-m", name)


OWN_DIRECTORY = str(PACKAGE_ROOT)
