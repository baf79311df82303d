"""The Temporal server of a deployment, by the ledger: a worker that speaks with another one must not touch its rows.

Such a worker finds none of the workflows that the ledger names, and would take every live episode for lost.
"""

import asyncio
import logging

from sqlalchemy.exc import OperationalError
from temporalio.client import Client
from temporalio.service import RPCError

from rollbook.errors import ForeignServer, RollbookError
from rollbook.temporal.namespace import (
    ensure_janitor,
    ensure_search_attributes,
    has_janitor,
    require_same_server,
    server_of,
    worker_identity,
)
from rollbook.worker.services import Services

WATCH_S = 10.0
"""Pause between two checks of a running worker: its Temporal server may lose its database at any time."""

log = logging.getLogger("rollbook.worker")


async def check_server(services: Services, client: Client) -> None:
    """Raise ForeignServer unless the client's Temporal server is the one that the ledger names for the deployment.

    The first server is adopted, and so is another one where the setting `adopt_temporal` allows it.
    """
    settings, ledger = services.settings, services.ledger
    place = (settings.deployment_id, client.namespace)
    server = await server_of(client)
    known = await ledger.temporal_server(*place)
    if known is None or (known != server and settings.adopt_temporal):
        reason = "the first server" if known is None else "the local stack's own server lost its database"
        await ledger.adopt_temporal_server(
            *place, server, reason=reason, adopted_by=worker_identity(settings.deployment_id)
        )
        known = await ledger.temporal_server(*place)
    try:
        require_same_server(*place, known, server)
    except ForeignServer as error:
        services.foreign_server.problem = str(error)
        raise
    services.foreign_server.problem = ""


async def await_server(services: Services, client: Client) -> None:
    """Return when the server is the ledger's; waits while Temporal or the ledger is down. Raises ForeignServer."""
    while True:
        try:
            await check_server(services, client)
            return
        except (RPCError, OperationalError) as error:
            log.warning("the Temporal server cannot be checked now: %s", error)
            await asyncio.sleep(2)


async def watch_server(services: Services, client: Client, *, schedules: bool) -> None:
    """Check the server again and again. With `schedules`, make the Janitor's schedule anew when it is gone."""
    while True:
        await asyncio.sleep(WATCH_S)
        try:
            await check_server(services, client)
            if schedules and not await has_janitor(client, services.settings):
                log.warning("the Janitor's schedule is gone from Temporal: making it again")
                await ensure_search_attributes(client)
                await ensure_janitor(client, services.settings)
        except RollbookError as error:
            log.error("%s", error)
        except (RPCError, OperationalError) as error:  # Temporal or the ledger is down: the next look may succeed
            log.warning("the Temporal server cannot be checked now: %s", error)
        except Exception:
            log.exception("the check of the Temporal server failed")  # and goes on: nothing else would notice a loss
