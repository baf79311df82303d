"""Servers of the bench's own: the classes and settings of the local stack, on a scratch directory."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from bench.procfs import cpu_ms
from rollbook.config.settings import PROJECT_ROOT, Settings
from rollbook.stack.postgres import PostgresServer
from rollbook.stack.processes import free_port
from rollbook.stack.servers import TemporalServer
from tests.support.servers import scratch_directory
from tests.support.system import System, WorkerProcess, running_system, system_settings

STATS_PATIENCE_S = 11.0
"""An idle Postgres session hands in its statistics within 10 s; one that ends, at once."""


@dataclass
class House:
    """A running Temporal, a running Postgres, connections; workers are started by those who measure them."""

    directory: Path
    postgres: PostgresServer
    temporal: TemporalServer
    settings: Settings
    system: System

    def server_pids(self) -> dict[str, int]:
        """Root process of each server."""
        assert self.temporal.ref is not None
        assert self.postgres.ref is not None
        return {"Temporal server": self.temporal.ref.pid, "Postgres": self.postgres.ref.pid}

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[int]:
        """A worker process for all roles; its pid."""
        process = WorkerProcess(self.settings, self.temporal.address, self.directory / "worker.log")
        await process.start()
        try:
            yield int(process.ready_file.read_text())
        finally:
            await process.stop()

    @asynccontextmanager
    async def bare_worker(self, queue: str, steps: int) -> AsyncIterator[int]:
        """A worker process with the same workflows whose activities do nothing (`bench.bare`); its pid."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bench.bare", self.temporal.address, queue, str(steps)),
            cwd=PROJECT_ROOT,
            env=dict(os.environ),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            await asyncio.wait_for(process.stdout.readline(), 60)
            yield process.pid
        finally:
            process.terminate()
            await process.wait()

    async def transactions(self, patience_s: float = 0) -> int:
        """Transactions that Postgres has committed so far in the ledger's database, reads included.

        Complete once the sessions that made them have ended, or after `patience_s` = STATS_PATIENCE_S.
        """
        await asyncio.sleep(patience_s)
        query = text("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        async with self.system.ledger.engine.connect() as connection:
            return int((await connection.execute(query)).scalar_one())


@asynccontextmanager
async def house(*, durable: bool = True) -> AsyncIterator[House]:
    """Start the servers as `rollbook up` runs them (Postgres with fsync), and migrate the ledger."""
    with scratch_directory("rollbook-bench-") as directory:
        _keep_bytecode(directory / "bytecode")
        postgres = PostgresServer(directory / "postgres", directory / "postgres.log", durable=durable)
        temporal = TemporalServer(directory / "temporal", directory / "temporal.log", free_port())
        try:
            await postgres.start()
            await temporal.start()
            url = await postgres.create_database("ledger")
            settings = system_settings(
                directory / "state", url, "bench", heartbeat_s=30, pump_slice_s=60, max_desktops=4
            )
            async with running_system(settings, temporal.address, workers=False) as system:
                yield House(directory, postgres, temporal, settings, system)
        finally:
            await temporal.stop()
            await postgres.stop()


def _keep_bytecode(directory: Path) -> None:
    """Let our processes cache compiled code, as they do where Rollbook is installed, but not in the checkout.

    Without a cache every workflow compiles its modules again, in its sandbox.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(directory)


class Meter:
    """CPU milliseconds of named processes between two looks."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        return {name: cpu_ms(pid) for name, pid in self._pids.items()}

    def spent(self) -> dict[str, float]:
        """CPU milliseconds by name since the meter was made."""
        now = self._now()
        return {name: now[name] - self._before[name] for name in self._pids}
