"""Processes and loopback ports of this machine.

A pid alone is reused by the kernel. A `ProcessRef` also holds the process's start time and the boot it belongs to, so
that no other process is ever signalled.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict

from rollbook.errors import ConfigError

HOST = "127.0.0.1"
PREFERRED = {"temporal": 7233, "temporal_ui": 8233, "artifact": 8288}
"""Port of each server where it is free."""
_POLL_S = 0.05


class ProcessRef(BaseModel):
    """One process: pid, start time (seconds after boot) and boot id."""

    model_config = ConfigDict(frozen=True)

    pid: int
    start_s: float
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "ProcessRef | None":
        """The process that has `pid` now, or None if there is none (a zombie counts as none)."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    return None
                # Relative to the boot, because setting the clock moves both by the same amount.
                start_s = round(process.create_time() - psutil.boot_time(), 2)
        except psutil.NoSuchProcess:
            return None
        return cls(pid=pid, start_s=start_s, boot_id=_boot_id())

    def alive(self) -> bool:
        """True while this very process runs."""
        return ProcessRef.of(self.pid) == self

    def signal(self, signum: int) -> bool:
        """Send `signum` to this process. False if it is gone."""
        try:
            # A pidfd names the process even if it ends, and its pid is reused, between the check and the signal.
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(pidfd, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def stop_process(ref: ProcessRef, signum: int = signal.SIGTERM, grace_s: float = 10.0) -> None:
    """Ask `ref` to end with `signum`; SIGKILL it and its process group after `grace_s` seconds."""
    if ref.signal(signum):
        await wait_gone(ref, grace_s)
    if ref.alive():
        kill_group(ref)
        await wait_gone(ref, 5.0)


def kill_group(ref: ProcessRef) -> None:
    """SIGKILL the process group that `ref` leads, also when the leader itself is gone already.

    While any member of the group lives, the kernel does not reuse its number.
    """
    # Another process may lead a group of this number now.
    if ref.boot_id != _boot_id() or (ProcessRef.of(ref.pid) not in (None, ref)):
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(ref.pid, signal.SIGKILL)


async def wait_gone(ref: ProcessRef, timeout_s: float) -> bool:
    """Wait until `ref` is gone. False if it is still there after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while ref.alive():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def marked_processes(name: str, value: str) -> list[ProcessRef]:
    """Processes whose initial environment holds `name=value`: descendants that inherited the mark.

    Processes of other users that we may not read are left out.
    """
    marked = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if (
                process.pid != os.getpid()
                and process.environ().get(name) == value
                and (ref := ProcessRef.of(process.pid))
            ):
                marked.append(ref)
    return marked


def is_free(port: int) -> bool:
    """True if a server could listen on loopback port `port` now."""
    with socket.socket() as probe:
        # Lets a port in TIME_WAIT count as free; one with a listener still refuses.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(avoid: Iterable[int] = ()) -> int:
    """A loopback port that is free now and not in `avoid`."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port not in avoid:
            return port


def choose(setting: str, pinned: int | None, preferred: Iterable[int], avoid: Iterable[int] = ()) -> int:
    """The port to use: `pinned` if given, else the first free one of `preferred`, else any free one.

    Raises ConfigError naming `setting` and the holder when `pinned` is taken.
    """
    if pinned is not None:
        if not is_free(pinned):
            raise ConfigError(
                f"port {pinned} ({setting}) is taken by {holder(pinned)}: "
                f"stop that program, or unset {setting} to have a free port chosen"
            )
        return pinned
    # `avoid` may be an iterator, and is asked for each port.
    taken = set(avoid)
    for port in preferred:
        if port not in taken and is_free(port):
            return port
    return free_port(taken)


def holder(port: int) -> str:
    """The program that listens on loopback port `port`: `pid 123 (name)`; `another program` where that is hidden."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if _listening(connection, port) and connection.pid:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "another program"


def listens(pid: int, port: int) -> bool:
    """True if process `pid` (of our own user, or we are root) listens on `port`.

    An answer on a port proves nothing about a child process: another program may have been quicker.
    """
    try:
        return any(_listening(connection, port) for connection in psutil.Process(pid).net_connections("tcp"))
    except psutil.Error:
        return False


def _listening(connection: Any, port: int) -> bool:
    return bool(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port)
