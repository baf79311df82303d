"""Settings of the guest server, read once from the environment when it starts."""

import os
from dataclasses import dataclass
from pathlib import Path

RUN_DIR = Path("/run/rollbook")


@dataclass(frozen=True)
class Settings:
    """Limits and paths of the guest server.

    `execute_timeout_s` is the longest a command of /execute may take (upstream: 120 s); `open_timeout_s` the
    longest wait for a window after /setup/open_file (upstream: 1800 s); `ready_grace_s` how long /screenshot
    may answer 503 while the desktop is still being drawn; `accessibility_timeout_s` the longest walk over the
    accessibility tree; `max_output_bytes` the longest output kept per stream of a command.
    """

    port: int = 5000
    threads: int = 32
    execute_timeout_s: float = 120.0
    open_timeout_s: float = 1800.0
    ready_grace_s: float = 45.0
    accessibility_timeout_s: float = 60.0
    max_output_bytes: int = 32 * 1024 * 1024
    run_dir: Path = RUN_DIR


def from_environment() -> Settings:
    """Settings from `ROLLBOOK_GUEST_*`; a variable that is absent keeps its default."""

    def number(name: str, default: float) -> float:
        return float(os.environ.get(f"ROLLBOOK_GUEST_{name}", default))

    return Settings(
        port=int(number("PORT", Settings.port)),
        threads=int(number("THREADS", Settings.threads)),
        execute_timeout_s=number("EXECUTE_TIMEOUT_S", Settings.execute_timeout_s),
        open_timeout_s=number("OPEN_TIMEOUT_S", Settings.open_timeout_s),
        ready_grace_s=number("READY_GRACE_S", Settings.ready_grace_s),
        accessibility_timeout_s=number("ACCESSIBILITY_TIMEOUT_S", Settings.accessibility_timeout_s),
    )
