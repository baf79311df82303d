"""Cost of processes, read from /proc: CPU time and memory of a process and everything below it."""

import os
from pathlib import Path

_TICK_MS = 1000.0 / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """`pid` and its descendants that run now."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found.extend(parents.get(one, []))
    return found


def cpu_ms(pid: int) -> float:
    """CPU milliseconds (user and system) used so far by `pid`, its descendants, and the children they have reaped."""
    total = 0
    for one in tree(pid):
        if fields := _stat(one):
            total += sum(int(value) for value in fields[11:15])
    return total * _TICK_MS


def peak_memory_mb(pid: int) -> float:
    """The most resident memory that `pid` ever had, in MB."""
    return _status_mb(pid, "VmHWM:")


def forget_peak() -> None:
    """Let the peak of this process count from now."""
    Path("/proc/self/clear_refs").write_text("5")


def private_memory_mb(pid: int) -> float:
    """Memory of the whole tree, shared pages divided among those who share them, in MB."""
    total = 0
    for one in tree(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def _status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/status has no {name}")


def _stat(pid: int) -> list[str] | None:
    """Fields from the third on (state, parent, …); None for a process that has gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and parentheses: fields are counted from the last ')'.
    return text.rpartition(")")[2].split()
