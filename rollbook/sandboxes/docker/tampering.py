"""The guest server as the engine sees it: its process, and the files that its code comes from.

Root in the guest can replace the server and answer the evaluator as it likes. It cannot change what the engine records:
the layer of changed files, and the processes as the host numbers them. It cannot change the running server in place
either: it lacks the capability, and the server forbids it to programs of its own user. So a server that is still the
process of the desktop's start, of files that are still the image's, is the image's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PS_COLUMNS = "-eo pid,ppid,etimes,args"
_PROCESS = re.compile(r"(?P<id>\d+) (?P<parent>\d+) (?P<age>\d+) (?P<command>.*)")
_SAME_START_S = 60
"""Difference of two readings of one start: the clock may be set, and the engine takes its time. A process number alone
would come back when they have all been used once."""
_SERVER = re.compile(r"/usr/bin/python3( -\w)* -m guest\.app")

_SERVER_FILES = re.compile(
    r"""
    /opt/rollbook(/.*)?                                # guest server and init
    | /usr/bin/python3(\.\d+)?                         # their interpreter
    | /etc/ld\.so\.preload                             # loaded into every program that starts
    | /usr/lib/python3(\.\d+)?/(.*/)?(site|user)customize\.py
    | /etc/python3(\.\d+)?/sitecustomize\.py
    """,
    re.VERBOSE,
)
_SYSTEM = ("/bin/", "/sbin/", "/lib/", "/lib64/", "/usr/bin/", "/usr/sbin/", "/usr/lib/", "/usr/lib64/", "/usr/local/")
_CACHES = re.compile(r"/__pycache__(/|$)|\.cache$|/gschemas\.compiled$|/gdk-pixbuf-2\.0/")
"""Files that installing any package writes anew."""
KEPT = 100
"""Paths of each kind that are recorded."""

_CHANGED, _ADDED, _DELETED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed files of a container, as far as they matter to what the guest says about itself."""

    server: list[str]
    """Of the guest server, its interpreter, and the process that starts both."""
    system: list[str]
    """Programs and libraries of the image that are not as the image has them any more. Added ones prove nothing:
    tasks install packages."""


def server_process(top: Mapping[str, Any], init_pid: int, now: float) -> str:
    """The guest server's process as the host knows it, `number@start` (Unix time); empty without one."""
    for row in top.get("Processes") or []:
        match = _PROCESS.fullmatch(" ".join(row))
        if match and int(match["parent"]) == init_pid and _SERVER.fullmatch(match["command"]):
            return f"{match['id']}@{int(now) - int(match['age'])}"
    return ""


def changes_of(diff: Iterable[Mapping[str, Any]]) -> Changes:
    """Sort the engine's list of changes."""
    rows = {str(row["Path"]): int(row["Kind"]) for row in diff}
    directories = {path.rpartition("/")[0] for path in rows}
    server = [path for path in rows if _SERVER_FILES.fullmatch(path)]
    system = [
        path
        for path, kind in rows.items()
        if kind != _ADDED and path.startswith(_SYSTEM) and path not in directories and not _CACHES.search(path)
    ]
    return Changes(sorted(server), sorted(set(system) - set(server)))


def problems(changes: Changes, started_as: str, now: str | None) -> list[str]:
    """Signs in words that the guest server is not the image's.

    Args:
        started_as: Its process when the desktop was started; empty for a guest of another make.
        now: Its process now, empty without one; None when no process can be seen, for instance of a stopped desktop.
    """
    signs = []
    if changes.server:
        signs.append(f"files of the guest server were changed: {_some(changes.server)}")
    if started_as and now is not None and not _same(started_as, now):
        signs.append(f"the guest server is not the process of the start: {now or 'none'} instead of {started_as}")
    return signs


def _same(one: str, other: str) -> bool:
    (number, _, start), (other_number, _, other_start) = one.partition("@"), other.partition("@")
    return number == other_number and abs(int(start) - int(other_start)) <= _SAME_START_S


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
