"""A world that can be broken: its own Postgres and Temporal, a worker process, real desktops, a counting task.

The counting task asks the desktop itself: every action appends one line to a file in the guest, and the evaluator
demands exactly as many lines as there were actions. A lost action or a doubled one is a score of 0.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from sqlalchemy import text

from tests.support.servers import (
    PostgresServer,
    TemporalServer,
    containers_of,
    new_postgres,
    new_temporal,
    remove_deployment,
)
from tests.support.system import System, WorkerProcess, running_system, system_settings
from tests.support.waiting import until

STEPS = 6
COUNT_FILE = "/home/user/count.txt"
QUICK = {"after_setup_s": 0, "after_action_s": 0, "before_evaluation_s": 0}


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
    """Everything that can be killed, and the system's view of it."""

    postgres: PostgresServer
    temporal: TemporalServer
    worker: WorkerProcess
    system: System
    docker: docker.DockerClient

    def spec(self, **changes: Any) -> dict[str, Any]:
        """A batch of counting tasks."""
        return {
            "task_set": "counting",
            "policy": {"kind": "scripted", "script": "counting"},
            "settle": QUICK,
            "concurrency": 2,
            **changes,
        }

    def containers(self) -> list[Any]:
        """Desktops of this world."""
        return containers_of(self.docker, self.system.settings.deployment_id)

    async def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Rows of the ledger."""
        async with self.system.ledger.engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(text(query), values)).mappings()]

    async def scored(self, batch_id: str) -> list[dict[str, Any]]:
        """The selected outcome of every rollout."""
        return await self.rows(
            "SELECT rollout_key, o.* FROM rollout r JOIN outcome o USING (rollout_key)"
            " WHERE batch_id = :batch_id AND o.attempt_index = r.selected_attempt",
            batch_id=batch_id,
        )

    async def no_desktop_is_left(self) -> None:
        """Every desktop of this world disappears by itself."""

        async def none_left() -> bool:
            return not await asyncio.to_thread(self.containers)

        await until("no desktop is left", none_left, 60)


@asynccontextmanager
async def broken_world(
    directory: Path, docker_client: docker.DockerClient, name: str, tasks: list[dict[str, Any]], script: dict[str, Any]
) -> AsyncIterator[World]:
    """A world with one running worker process."""
    await asyncio.to_thread(directory.mkdir, mode=0o711, parents=True)
    postgres, temporal = new_postgres(directory), new_temporal(directory)
    await postgres.start()
    await temporal.start()
    url = await postgres.create_database("ledger")
    settings = system_settings(directory / "state", url, name, heartbeat_s=4, pump_slice_s=3, max_desktops=4)
    worker = WorkerProcess(settings, temporal.address, directory / "worker.log")
    try:
        async with running_system(settings, temporal.address, workers=False) as system:
            await system.register_tasks("counting", tasks)
            await system.register_script("counting", script)
            await worker.start()
            yield World(postgres, temporal, worker, system, docker_client)
    finally:
        await worker.stop()
        await asyncio.to_thread(remove_deployment, docker_client, name)
        await temporal.stop()
        await postgres.stop()
