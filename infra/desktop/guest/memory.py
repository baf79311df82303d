"""Evidence that the desktop ran out of memory."""

import re
from pathlib import Path

_COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    Path("/proc/vmstat"),  # of the whole kernel: right where the desktop is a machine of its own
)


def oom_kills() -> int:
    """Number of processes that the kernel has killed for lack of memory; 0 where nothing counts them."""
    for counter in _COUNTERS:
        try:
            count = re.search(r"^oom_kill (\d+)$", counter.read_text(), re.MULTILINE)
        except OSError:
            continue
        if count is not None:
            return int(count[1])
    return 0
