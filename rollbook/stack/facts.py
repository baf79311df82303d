"""What is so on this machine: each function looks at one thing. `rollbook.stack.checks` judges."""

import shutil
import subprocess
import sys
from pathlib import Path


def python_version() -> tuple[int, int, int]:
    """Version of the Python that runs us."""
    return sys.version_info[:3]


def uv() -> str | None:
    """Path of the program uv: beside our Python, or on the PATH."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def available_memory_gb() -> float:
    """Memory that programs can have without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1e6
    return 0.0


def bubblewrap_problem() -> str | None:
    """None when bubblewrap can make a sandbox here; `missing`, or its own words."""
    if shutil.which("bwrap") is None:
        return "missing"
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    done = subprocess.run([*argv, "true"], capture_output=True, text=True, timeout=20, check=False)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def kernel_switch(path: str) -> str | None:
    """Value of a file below /proc/sys; None where this kernel has no such switch."""
    return Path(path).read_text().strip() if Path(path).exists() else None
