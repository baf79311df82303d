"""Everything a rehearsal runs on and kills: a worker process, a Temporal server, a Postgres, on a scratch directory."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError

from models.batch import BatchResult, Counts
from tests.support.servers import PostgresServer, TemporalServer, new_postgres, new_temporal
from tests.support.system import System, WorkerProcess, running_system, system_settings

T = TypeVar("T")

DOWN_S = 1.0
"""Time that a killed server stays down."""
LOST = (DBAPIError, RPCError, OSError, TimeoutError)
"""Errors of a client while a server is down."""

Say = Callable[[str], None]


@dataclass
class Stage:
    """The servers, and connections that outlive their crashes."""

    postgres: PostgresServer
    temporal: TemporalServer
    worker: WorkerProcess
    system: System
    say: Say
    kills: list[str] = field(default_factory=list)

    async def kill(self, name: str) -> None:
        """kill -9 the worker, the Temporal server or Postgres, and start it again."""
        victims: dict[str, WorkerProcess | TemporalServer | PostgresServer]
        victims = {"worker": self.worker, "temporal": self.temporal, "postgres": self.postgres}
        victim = victims[name]
        await victim.kill9()
        self.kills.append(name)
        await asyncio.sleep(DOWN_S)
        await victim.start()

    async def patiently(self, work: Callable[[], Awaitable[T]], patience_s: float = 120) -> T:
        """The result of `work`, tried again while a server is down."""
        ends_at = time.monotonic() + patience_s
        while True:
            try:
                return await work()
            except LOST:
                if time.monotonic() >= ends_at:
                    raise
                await asyncio.sleep(0.3)

    async def counts(self, batch_id: str) -> Counts:
        """The roll call now."""
        return await self.patiently(lambda: self.system.ledger.counts(batch_id))

    async def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Rows of the ledger."""

        async def read() -> list[dict[str, Any]]:
            async with self.system.ledger.engine.connect() as connection:
                return [dict(row) for row in (await connection.execute(text(query), values)).mappings()]

        return await self.patiently(read)

    async def result(self, handle: WorkflowHandle[Any, BatchResult], patience_s: float) -> BatchResult:
        """The batch's result, however often the server goes away meanwhile."""
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    return await handle.result()
                except RPCError:
                    await asyncio.sleep(0.5)


@asynccontextmanager
async def stage(directory: Path, deployment: str, say: Say) -> AsyncIterator[Stage]:
    """Start everything; short timeouts, so that a crash is noticed soon."""
    postgres, temporal = new_postgres(directory), new_temporal(directory)
    await postgres.start()
    await temporal.start()
    try:
        url = await postgres.create_database("ledger")
        settings = system_settings(directory / "state", url, deployment, heartbeat_s=5, pump_slice_s=5)
        worker = WorkerProcess(settings, temporal.address, directory / "worker.log")
        async with running_system(settings, temporal.address, workers=False) as system:
            await worker.start()
            try:
                yield Stage(postgres, temporal, worker, system, say)
            finally:
                await worker.stop()
    finally:
        await temporal.stop()
        await postgres.stop()
