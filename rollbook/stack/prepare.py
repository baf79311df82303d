"""What servers need once they run: the ledger's schema, the namespace's retention."""

import asyncio
from datetime import timedelta

import psycopg
from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

from rollbook.errors import ConfigError
from rollbook.ledger.migrate import Phase, upgrade


async def migrate(url: str, phase: Phase = "all") -> list[str]:
    """Bring the ledger at `url` to the newest schema, or through one phase of it; the revisions that are left."""
    return await asyncio.to_thread(upgrade, url, phase=phase)


async def check_ledger(url: str) -> None:
    """ConfigError if no Postgres answers at `url`, the one of ROLLBOOK_DATABASE_URL."""
    try:
        connection = await psycopg.AsyncConnection.connect(url.replace("+psycopg", "", 1), connect_timeout=10)
    except psycopg.OperationalError as error:
        raise ConfigError(f"the Postgres of ROLLBOOK_DATABASE_URL does not let us in: {error}") from error
    await connection.close()


async def set_retention(address: str, days: int) -> None:
    """Let the dev server's namespace keep finished workflows for `days` days (it starts with one)."""
    duration = Duration()
    duration.FromTimedelta(timedelta(days=days))
    client = await Client.connect(address)
    await client.workflow_service.update_namespace(
        UpdateNamespaceRequest(namespace="default", config=NamespaceConfig(workflow_execution_retention_ttl=duration))
    )


async def external_temporal() -> tuple[str, str]:
    """(address, namespace) of the configured Temporal server, which must answer."""
    config = ClientConfig.load_client_connect_config()
    address, namespace = config.get("target_host"), config.get("namespace", "default")
    if not address:
        raise ConfigError("ROLLBOOK_TEMPORAL=external, but no server is named: set TEMPORAL_ADDRESS or a profile")
    try:
        await Client.connect(**config)
    except (RPCError, RuntimeError) as error:
        raise ConfigError(f"no Temporal server answers at {address} (TEMPORAL_ADDRESS): {error}") from error
    return address, namespace
