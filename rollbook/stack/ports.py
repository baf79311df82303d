"""Loopback ports: choose a free one, or name who holds the one that was asked for."""

import os
import socket
from collections.abc import Iterable
from pathlib import Path

from rollbook.errors import ConfigError

HOST = "127.0.0.1"
PREFERRED = {"temporal": 7233, "temporal_ui": 8233, "artifact": 8288}
"""Port of each server where it is free."""


def is_free(port: int) -> bool:
    """True if a server could listen on loopback port `port` now."""
    with socket.socket() as probe:
        # Lets a port in TIME_WAIT count as free; one that somebody listens on still refuses.
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
    taken = set(avoid)
    for port in preferred:
        if port not in taken and is_free(port):
            return port
    return free_port(taken)


def holder(port: int) -> str:
    """Who listens on loopback port `port`: `pid 123 (name)`, or `another program` if we may not see."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and listens(int(entry.name), port):
            try:
                return f"pid {entry.name} ({(entry / 'comm').read_text().strip()})"
            except OSError:
                continue
    return "another program"


def listens(pid: int, port: int) -> bool:
    """True if process `pid` (of our own user, or we are root) listens on `port`.

    A server that answers on a port proves nothing about a child of ours: another program may have been quicker.
    """
    inodes = _listening_inodes(port)
    try:
        return any(os.readlink(fd) in inodes for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            listening = fields[3] == "0A"
            if listening and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found
