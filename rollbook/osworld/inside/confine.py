"""Limits that the phase's process puts on itself before it touches anything of the guest's.

OSWorld's metrics turn many exceptions into a 0, so a limit must end the process rather than raise in it: SIGXFSZ gets
its deadly meaning back, memory is watched from outside and preferred by the kernel's OOM killer, and the hard limit
here lies far above what the watch allows.
"""

import ctypes
import os
import resource
import signal
from typing import Any

NOBODY = 65534
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


def confine(request: dict[str, Any]) -> None:
    """Die with the parent; limit CPU seconds, private memory, file size, core dumps; drop root where asked.

    `RLIMIT_DATA` rather than `RLIMIT_AS`: playwright's driver reserves far more address space than it ever uses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    limits = request["limits"]
    _limit(resource.RLIMIT_DATA, limits["memory_bytes"])
    _limit(resource.RLIMIT_CPU, limits["cpu_s"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _limit(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    if request["drop_root"] and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which clears it
    if request["parent_pid"] is not None and os.getppid() != request["parent_pid"]:
        os._exit(1)
    os.umask(0o022)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (wanted, wanted))
