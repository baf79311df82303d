"""Fixtures of integration tests: a migrated ledger per module."""

import uuid
from collections.abc import AsyncIterator

import pytest

from rollbook.ledger import Ledger
from tests.support.ledger import Kit, make_tasks


@pytest.fixture(scope="module")
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    """A ledger for the tests of one module; each test uses a batch of its own."""
    ledger = Ledger.connect(ledger_url)
    yield ledger
    await ledger.aclose()


@pytest.fixture(scope="module")
async def worker(ledger_url: str) -> AsyncIterator[Ledger]:
    """The same ledger in the role of workers: what may it do?"""
    ledger = Ledger.connect(ledger_url, role="rollbook_worker")
    yield ledger
    await ledger.aclose()


@pytest.fixture
async def kit(ledger: Ledger) -> Kit:
    """A batch id of its own, and six registered tasks over three domains, two of each."""
    tasks = make_tasks(6)
    await ledger.register_task_set("tasks", tasks)
    return Kit(ledger, batch_id=f"b-{uuid.uuid4().hex[:10]}", tasks=tasks)
