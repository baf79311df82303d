"""A system whose parts can be killed: its own Postgres and Temporal, and a worker process.

With desktops it plays the counting task, which asks the desktop itself: every action appends one line to a file in
the guest, and the evaluator demands exactly as many lines as there were actions. A lost action or a doubled one is a
score of 0.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from docker import DockerClient
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError

from models.batch import BatchResult, Counts
from tests.support.servers import PostgresServer, TemporalServer, containers_of, new_postgres, new_temporal
from tests.support.system import NO_PAUSES, System, WorkerProcess, running_system, system_settings
from tests.support.waiting import until

T = TypeVar("T")
Victim = Literal["worker", "temporal", "postgres"]

STEPS = 6
COUNT_FILE = "/home/user/count.txt"
DOWN_S = 1.0
"""Time that a killed server stays down."""
LOST = (DBAPIError, RPCError, OSError, TimeoutError)
"""Errors of a client while a server is down."""


def counting_task(task_id: str, *, slow_postconfig_s: float = 0, slow_evaluation_s: float = 0) -> dict[str, Any]:
    """A task that scores 1 exactly when every action of the script happened exactly once."""
    postconfig = [{"type": "sleep", "parameters": {"seconds": slow_postconfig_s}}] if slow_postconfig_s else []
    return {
        "id": task_id,
        "instruction": "Append one line per step.",
        "config": [{"type": "execute", "parameters": {"command": ["touch", COUNT_FILE]}}],
        "evaluator": {
            "postconfig": postconfig,
            "func": "exact_match",
            "result": {
                "type": "vm_command_line",
                "command": f"sleep {slow_evaluation_s}; wc -l < {COUNT_FILE}",
                "shell": True,
            },
            "expected": {"type": "rule", "rules": {"expected": f"{STEPS}\n"}},
        },
    }


def counting_script(seconds: float = 0.4) -> dict[str, Any]:
    """Each action takes a while, so that a crash finds it half done."""
    action = f"import time; time.sleep({seconds}); open('{COUNT_FILE}', 'a').write('x\\n')"
    steps: list[dict[str, Any]] = [{"actions": [action]} for _ in range(STEPS)]
    return {"schema_version": 1, "tasks": {}, "default": {"steps": [*steps, {"actions": ["DONE"]}]}}


@dataclass
class World:
    """The parts that can be killed, and connections that outlive their crashes."""

    postgres: PostgresServer
    temporal: TemporalServer
    worker: WorkerProcess
    system: System
    docker: DockerClient | None = None
    kills: list[Victim] = field(default_factory=list)

    async def kill(self, victim: Victim) -> None:
        """kill -9 one part, and start it again after `DOWN_S`."""
        part: WorkerProcess | TemporalServer | PostgresServer = getattr(self, victim)
        await part.kill9()
        self.kills.append(victim)
        await asyncio.sleep(DOWN_S)
        await part.start()

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
        """The counts of a batch now."""
        return await self.patiently(lambda: self.system.ledger.counts(batch_id))

    async def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Rows of the ledger."""

        async def read() -> list[dict[str, Any]]:
            async with self.system.ledger.engine.connect() as connection:
                return [dict(row) for row in (await connection.execute(text(query), values)).mappings()]

        return await self.patiently(read)

    async def result(self, handle: WorkflowHandle[Any, BatchResult], patience_s: float = 240) -> BatchResult:
        """The batch's result, however often the server is down meanwhile."""
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    return await handle.result()
                except RPCError:
                    await asyncio.sleep(0.5)

    def spec(self, **changes: Any) -> dict[str, Any]:
        """A batch of counting tasks."""
        return {
            "task_set": "counting",
            "policy": {"kind": "scripted", "script": "counting"},
            "settle": NO_PAUSES,
            "concurrency": 2,
            **changes,
        }

    async def scored(self, batch_id: str) -> list[dict[str, Any]]:
        """The selected outcome of every rollout."""
        return await self.rows(
            "SELECT rollout_key, o.* FROM rollout r JOIN outcome o USING (rollout_key)"
            " WHERE batch_id = :batch_id AND o.attempt_index = r.selected_attempt",
            batch_id=batch_id,
        )

    def containers(self) -> list[Any]:
        """Desktops of this world."""
        assert self.docker is not None
        return containers_of(self.docker, self.system.settings.deployment_id)

    async def no_desktop_is_left(self) -> None:
        """Wait until every desktop of this world has disappeared by itself."""

        async def none_left() -> bool:
            return not await asyncio.to_thread(self.containers)

        await until("no desktop is left", none_left, 60)


@asynccontextmanager
async def killable_world(
    directory: Path,
    deployment_id: str,
    docker_client: DockerClient | None = None,
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    """Start everything below `directory`. `environment` adds variables to the worker's."""
    await asyncio.to_thread(directory.mkdir, mode=0o711, parents=True)
    postgres, temporal = new_postgres(directory), new_temporal(directory)
    try:
        await postgres.start()
        await temporal.start()
        url = await postgres.create_database("ledger")
        chosen = system_settings(directory / "state", url, deployment_id, **settings)
        worker = WorkerProcess(chosen, temporal.address, directory / "worker.log", environment=environment)
        async with running_system(chosen, temporal.address, workers=False) as system:
            try:
                await worker.start()
                yield World(postgres, temporal, worker, system, docker_client)
            finally:
                await worker.stop()
    finally:
        await temporal.stop()
        await postgres.stop()
