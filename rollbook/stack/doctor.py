"""`rollbook doctor`: missing requirements of this machine and their fixes."""

import asyncio
import json
import subprocess
from collections.abc import Callable

from docker.errors import DockerException

from rollbook.config.findings import Check
from rollbook.config.settings import Settings
from rollbook.errors import RollbookError
from rollbook.sandboxes.registry import provider_kinds
from rollbook.stack import checks

Examination = Callable[[Settings], Check]

EXAMINATIONS: tuple[Examination, ...] = (
    checks.check_settings,
    checks.check_python,
    checks.check_servers,
    checks.check_uv,
    checks.check_sandbox,
    checks.check_evaluator,
    checks.check_state_dir,
    checks.check_disk,
    checks.check_memory,
    checks.check_ports,
    checks.check_tasks,
)


async def doctor(settings: Settings) -> list[Check]:
    """Look at everything the local stack and its desktops need. Changes nothing."""
    return list(await asyncio.gather(*(_guarded(examine, settings) for examine in examinations(settings))))


def examinations(settings: Settings) -> list[Examination]:
    """The checks of this machine, and those of every sandbox provider that the settings enable."""
    providers = [kind for kind in provider_kinds() if kind.enabled(settings)]
    return [*EXAMINATIONS, *(check for kind in providers for check in kind.checks)]


def print_checks(checks: list[Check], as_json: bool = False) -> int:
    """Print a table or JSON; the exit code: 1 if something required is missing."""
    failed = any(check.level == "fail" for check in checks)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [check.model_dump() for check in checks]}, indent=1))
        return int(failed)
    for check in checks:
        print(f"{check.level:<5} {check.name:<16} {check.found}")
        if check.fix and check.level != "ok":
            print(f"{'':<22} fix: {check.fix}")
    return int(failed)


async def _guarded(examine: Examination, settings: Settings) -> Check:
    """A check that breaks is a finding too."""
    name = examine.__name__.removeprefix("check_").replace("_", " ")
    try:
        return await asyncio.to_thread(examine, settings)
    except (RollbookError, OSError, DockerException, subprocess.SubprocessError) as error:
        return Check(name=name, level="fail", found=str(error))
