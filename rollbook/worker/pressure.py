"""Pressure on this machine: a desktop that waits for its host can fail a task that the policy has solved."""

import os
from pathlib import Path

PSI = Path("/proc/pressure")


def read_pressure() -> dict[str, float] | None:
    """Return the share of the last 10 s, 0..100, in which tasks waited for cpu, memory and io, and the load per core.

    Kernels without pressure stall information give the load only; None where not even that can be read.
    """
    pressure = {}
    for resource in ("cpu", "memory", "io"):
        try:
            first = (PSI / resource).read_text().split()
        except OSError:  # an older kernel, or one that was started with psi=0
            continue
        pressure[f"{resource}_some_avg10"] = float(first[1].removeprefix("avg10="))
    try:
        pressure["load_per_core"] = round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    except OSError:
        return pressure or None
    return pressure
