"""Temporal's database is lost while a worker lives; a worker is pointed at another Temporal server."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from rollbook.config.settings import PROJECT_ROOT
from rollbook.errors import ForeignServer
from rollbook.worker.server_check import check_server
from tests.support.ledger import rows
from tests.support.servers import TemporalServer, new_temporal
from tests.support.system import WorkerProcess, as_login, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until

SLOW = {"policy": {"kind": "noop", "waits": 40}, "limits": {"max_steps": 60}, "samples": 2, "concurrency": 3}


@pytest.fixture
async def temporal(scratch: Path) -> AsyncIterator[TemporalServer]:
    server = new_temporal(scratch / "lost")
    await server.start()
    yield server
    await server.stop()
    shutil.rmtree(server.directory)


async def lose(server: TemporalServer) -> None:
    """The server comes back at once, with an empty database."""
    await server.kill9()
    shutil.rmtree(server.directory)
    await server.start()


async def test_a_batch_goes_on_without_a_restart_of_the_worker(
    scratch: Path, database_url: str, temporal: TemporalServer
) -> None:
    settings = system_settings(
        scratch / "going-on", database_url, "going-on", adopt_temporal=True, janitor_interval_s=5, janitor_min_age_s=1
    )
    async with running_system(settings, temporal.address, workers=False) as system:
        await system.register_tasks("four", small_tasks(4))
        worker = WorkerProcess(settings, temporal.address, settings.state_dir / "worker.log")
        await worker.start()
        await system.start_batch(null_spec("four", **SLOW), "lost")

        async def under_way() -> bool:
            return (await system.ledger.counts("lost")).running >= 2

        await until("episodes run", under_way)
        await lose(temporal)

        async def complete() -> bool:
            counts = await system.ledger.counts("lost")
            return counts.admitted == counts.planned == 8

        await until("the batch is complete", complete, 150)
        assert worker.alive, "it is the same worker"
        result = await (await Client.connect(temporal.address)).get_workflow_handle("lost").result()
        assert result["state"] == "complete"
        assert (await system.audit("lost")).ok
        await worker.stop()


async def _rollbook(environment: dict[str, str], *arguments: str) -> int:
    command = [sys.executable, "-m", "rollbook.cli.main", *arguments]
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | environment, cwd=PROJECT_ROOT)
    return await process.wait()


async def test_another_server_is_refused_until_the_first_is_declared_lost(
    scratch: Path, database_url: str, temporal: TemporalServer, temporal_address: str
) -> None:
    """The live episodes of the first server remain untouched meanwhile."""
    settings = system_settings(scratch / "refused", database_url, "refused", janitor_min_age_s=1)
    async with running_system(settings, temporal.address) as first:
        await check_server(first.services, first.client)
        await first.register_tasks("four", small_tasks(4))
        handle = await first.start_batch(null_spec("four", **SLOW), "alive")
        with pytest.raises(AssertionError, match="by the ledger; this server has"):
            await WorkerProcess(settings, temporal_address, settings.state_dir / "stranger.log").start()
        async with running_system(settings, temporal_address, workers=False) as second:
            with pytest.raises(ForeignServer, match="adopt-temporal"):
                await check_server(second.services, second.client)
            with pytest.raises(ForeignServer):
                await second.services.check_own("alive")
            assert (await handle.result()).counts.admitted == 8
            assert [row["n"] for row in await rows(first.ledger, "SELECT count(*) AS n FROM attempt")] == [8]

            environment = as_login(settings, "operator").environment() | {"TEMPORAL_ADDRESS": temporal_address}
            spec = settings.state_dir / "spec.json"
            await asyncio.to_thread(spec.write_text, json.dumps(null_spec("four")))
            assert await _rollbook(environment, "submit", str(spec), "--batch-id", "astray") == 2
            assert await _rollbook(environment, "adopt-temporal", "--reason", "the first one burned") == 0
            await check_server(second.services, second.client)
        with pytest.raises(ForeignServer):
            await check_server(first.services, first.client)
