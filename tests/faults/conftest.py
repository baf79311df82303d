"""Fixtures of fault tests: the same desktop image as the integration tests."""

from tests.integration.conftest import desktop_image

__all__ = ["desktop_image"]
