"""The whole system on real desktops, with the example task set, the canonical tasks and the example scripts."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
import pytest

from rollbook.config.settings import PROJECT_ROOT, get_settings
from tests.support.servers import remove_deployment
from tests.support.system import System, running_system, system_settings

EXAMPLES = PROJECT_ROOT / "examples"


def example(path: str) -> Any:
    """An example file's content."""
    return json.loads((EXAMPLES / path).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
async def system(
    scratch: Path,
    ledger_url: str,
    temporal_address: str,
    deployment_id: str,
    desktop_image: str,
    docker_client: docker.DockerClient,
) -> AsyncIterator[System]:
    """A worker for all roles in this process; two desktops at once, of a deployment of its own."""
    own = f"{deployment_id}-fidelity"
    settings = system_settings(
        scratch / "fidelity",
        ledger_url,
        own,
        desktop_image=desktop_image,
        max_desktops=2,
        heartbeat_s=30,
    )
    async with running_system(settings, temporal_address) as system:
        await system.register_directory("quickstart", EXAMPLES / "quickstart")
        await system.register_script("quickstart", example("scripts/quickstart.json"))
        yield system
    remove_deployment(docker_client, own)


@pytest.fixture(scope="module")
async def osworld(system: System) -> System:
    """The same system, OSWorld's canonical tasks registered; skips where they are not at hand."""
    directory = get_settings().osworld_tasks
    if not directory.is_dir():
        pytest.skip(f"no canonical tasks in {directory} (setting ROLLBOOK_SHARED)")
    await system.register_directory("osworld", directory)
    await system.register_script("osworld-os", example("scripts/osworld-os.json"))
    return system
