"""A Temporal test server that skips time: deadlines and retries of hours pass in milliseconds.

It has no visibility and starts activities slowly; what the server itself promises (continue-as-new with signals in
flight, search attributes) is tested on the real dev server instead.
"""

import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.testing import WorkflowEnvironment

from models.attributes import SEARCH_ATTRIBUTES
from rollbook.temporal.plugin import RollbookPlugin

TEST_SERVER = Path(sysconfig.get_path("scripts")) / "temporal-test-server"


@asynccontextmanager
async def time_skipping() -> AsyncIterator[WorkflowEnvironment]:
    """The server and a client with our plugin, search attributes registered."""
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(TEST_SERVER), plugins=[RollbookPlugin()]
    ) as env:
        kinds = {
            name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
            for name, kind in SEARCH_ATTRIBUTES.items()
        }
        await env.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=env.client.namespace, search_attributes=kinds)
        )
        yield env
