"""Findings of `rollbook doctor`, shared by the checks of the stack and of sandbox providers."""

import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

Level = Literal["ok", "warn", "fail"]

DISK_NEEDED_GB = 5.0
DISK_COMFORT_GB = 15.0
SETUP = "run `make setup`"


class Check(BaseModel):
    """One finding. `fail`: episodes cannot run here; `warn`: something is limited or not there yet."""

    name: str
    level: Level
    found: str
    fix: str | None = None


def free_gb(place: Path) -> float:
    """Free space of the file system that `place` is on, or will be on once it exists."""
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free / 1e9


def level_of(value: float, needed: float, comfort: float) -> Level:
    """`fail` below `needed`, `warn` below `comfort`."""
    if value < needed:
        return "fail"
    return "warn" if value < comfort else "ok"


def disk_level(free: float) -> Level:
    """The level for so many GB of free space."""
    return level_of(free, DISK_NEEDED_GB, DISK_COMFORT_GB)
