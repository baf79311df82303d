"""Fixtures of episode workflow tests: fake activities on a server that skips time."""

import uuid
from collections.abc import AsyncIterator

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.doubles.fake_activities import FakeActivities, fake_worker
from tests.support.episodes import time_skipping


@pytest.fixture(scope="session")
async def env() -> AsyncIterator[WorkflowEnvironment]:
    """One time-skipping server for the session."""
    async with time_skipping() as env:
        yield env


@pytest.fixture
async def fakes(env: WorkflowEnvironment) -> AsyncIterator[FakeActivities]:
    """Fake activities and a worker on a task queue of their own."""
    fakes = FakeActivities(f"q-{uuid.uuid4().hex[:8]}")
    async with fake_worker(env.client, fakes):
        yield fakes
