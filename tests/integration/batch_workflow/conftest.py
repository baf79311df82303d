"""Fixtures of batch workflow tests: fake activities on the session's real Temporal server."""

import uuid
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from rollbook.temporal.plugin import RollbookPlugin
from tests.doubles.fake_activities import FakeActivities, fake_worker


@pytest.fixture(scope="module")
async def client(temporal_address: str) -> Client:
    """A client with the product's plugin."""
    return await Client.connect(temporal_address, plugins=[RollbookPlugin()])


@pytest.fixture
async def fakes(client: Client) -> AsyncIterator[FakeActivities]:
    """Fake activities and a worker on a task queue of their own."""
    fakes = FakeActivities(f"q-{uuid.uuid4().hex[:8]}")
    async with fake_worker(client, fakes):
        yield fakes
