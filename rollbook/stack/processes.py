"""Naming an operating system process so that nobody else's is ever signalled.

A pid alone is reused by the kernel. A `ProcessRef` also holds the process's start time and the boot it
belongs to; together they name one process for good.
"""

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_POLL_S = 0.05


class ProcessRef(BaseModel):
    """One process: pid, start time (clock ticks after boot) and boot id."""

    model_config = ConfigDict(frozen=True)

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "ProcessRef | None":
        """The process that has `pid` now, or None if there is none (a zombie counts as none)."""
        stat = _stat(pid)
        return None if stat is None else cls(pid=pid, start_ticks=stat, boot_id=_boot_id())

    def alive(self) -> bool:
        """True while this very process runs."""
        return self.boot_id == _boot_id() and _stat(self.pid) == self.start_ticks

    def signal(self, signum: int) -> bool:
        """Send `signum` to this process. False if it is gone."""
        try:
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


def _stat(pid: int) -> int | None:
    """Start time in clock ticks, or None for no process or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and parentheses: fields are counted from the last ')'.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


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

    While any member of the group lives, the kernel gives its number to nobody else.
    """
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
    mark = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark in environ.split(b"\0") and (ref := ProcessRef.of(int(entry.name))):
            found.append(ref)
    return found
