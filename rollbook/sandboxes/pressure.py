"""Pressure on this machine: OSWorld's setups and postconfigs rely on sleeps of half a second."""

import os
import re
from pathlib import Path

from rollbook.errors import CapacityBusy

PROC = Path("/proc")
RETRY_AFTER_S = 15.0
"""Longer than the ten seconds over which the kernel averages: a look before would see the same."""

_SOME = re.compile(r"^some avg10=([0-9.]+)", re.MULTILINE)


def read_pressure(proc: Path = PROC) -> dict[str, float]:
    """Percent of the last ten seconds in which some process waited for `cpu`, `memory` or `io`, by the kernel's count.

    Without that count (PSI, Linux 4.20): `load`, the load average of the last minute per core, as percent.
    """
    found = {}
    for resource in ("cpu", "memory", "io"):
        try:
            match = _SOME.search((proc / "pressure" / resource).read_text())
        except OSError:  # no such file, or a kernel with the count switched off
            continue
        if match:
            found[resource] = float(match[1])
    if not found:
        load = (proc / "loadavg").read_text().split()[0]
        found["load"] = round(100 * float(load) / (os.cpu_count() or 1), 2)
    return found


def require_calm(limit: float | None, pressure: dict[str, float]) -> None:
    """Raise CapacityBusy when a pressure is above the limit; None: no limit."""
    above = [f"{name} {value:g}" for name, value in pressure.items() if limit is not None and value > limit]
    if above:
        raise CapacityBusy(
            f"pressure on this machine is above {limit:g} (ROLLBOOK_MAX_PRESSURE): {', '.join(above)}",
            retry_after_s=RETRY_AFTER_S,
        )
