"""Fixtures of tests that need a real desktop."""

import docker
import pytest

from rollbook.config.settings import get_settings
from rollbook.sandboxes.image import ensure_image


@pytest.fixture(scope="session")
async def desktop_image(docker_client: docker.DockerClient) -> str:
    """The desktop image: ROLLBOOK_DESKTOP_IMAGE, or the one of `infra/desktop`, built when its inputs changed."""
    return get_settings().desktop_image or await ensure_image()
