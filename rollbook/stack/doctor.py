"""`rollbook doctor`: what this machine lacks, and how to mend it."""

import asyncio
import json
import subprocess
from collections.abc import Callable

from docker.errors import DockerException

from rollbook.config.settings import Settings
from rollbook.errors import RollbookError
from rollbook.stack import checks, checks_docker
from rollbook.stack.checks import Check

Examination = Callable[[Settings], Check]

EXAMINATIONS: tuple[Examination, ...] = (
    checks.check_settings,
    checks.check_python,
    checks.check_servers,
    checks.check_uv,
    checks_docker.check_engine,
    checks_docker.check_image,
    checks_docker.check_docker_disk,
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
    return list(await asyncio.gather(*(_guarded(examine, settings) for examine in EXAMINATIONS)))


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
