"""The whole system for tests: real Temporal, real Postgres, real workers; desktops real or of the do-nothing kind.

`System` runs its workers in this process. Fault tests run `worker_main.py` as a process of its own: `WorkerProcess`.
"""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from models import names
from models.batch import BatchResult
from models.identity import canonical_json
from rollbook.artifacts import ArtifactStore
from rollbook.config.connections import LedgerRole, as_role
from rollbook.config.settings import PROJECT_ROOT, Settings, load_settings
from rollbook.ledger import Ledger
from rollbook.ledger.migrate import upgrade
from rollbook.osworld.tasksets import read_task_set
from rollbook.policies.scripted import read_script
from rollbook.stack.servers import WORKER_COMMAND
from rollbook.temporal.namespace import worker_identity
from rollbook.temporal.plugin import RollbookPlugin
from rollbook.worker.services import Services, open_services
from tests.support.servers import let_roles_log_in

NULL_DESKTOP = {"provider": "null"}
NO_PAUSES = {"after_setup_s": 0, "after_action_s": 0, "before_evaluation_s": 0}


def null_spec(task_set: str, **changes: Any) -> dict[str, Any]:
    """A spec on the do-nothing desktop without pauses."""
    return {
        "task_set": task_set,
        "policy": {"kind": "noop"},
        "desktop": NULL_DESKTOP,
        "settle": NO_PAUSES,
        **changes,
    }


def small_tasks(count: int, domain: str = "os") -> list[dict[str, Any]]:
    """Task documents that need no desktop."""
    return [
        {"id": f"t{number:03d}", "instruction": f"task {number}", "config": [], "evaluator": {"func": "infeasible"}}
        for number in range(count)
    ]


@dataclass
class System:
    """Connections of the test; the workers poll a queue of their own."""

    settings: Settings
    services: Services
    client: Client
    ledger: Ledger
    """As the owner of the tables; the services are workers and connect as such."""

    @property
    def artifacts(self) -> ArtifactStore:
        return self.services.artifacts

    async def register_tasks(self, name: str, documents: list[dict[str, Any]], domain: str = "os") -> None:
        from models.task import read_task

        await self.ledger.register_task_set(name, [read_task(domain, document) for document in documents])

    async def register_directory(self, name: str, directory: Path, list_file: str = "test_all.json") -> None:
        await self.ledger.register_task_set(name, read_task_set(directory, list_file))

    async def register_script(self, name: str, body: dict[str, Any]) -> None:
        read_script(body)
        await self.ledger.register_script(name, body)

    async def start_batch(self, spec: Any, batch_id: str | None = None) -> WorkflowHandle[Any, BatchResult]:
        return await self.client.start_workflow(
            names.BATCH,
            spec,
            id=batch_id or f"b-{uuid.uuid4().hex[:8]}",
            task_queue=self.settings.task_queue_orchestrate,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            result_type=BatchResult,
        )

    async def run_batch(self, spec: Any, batch_id: str | None = None) -> BatchResult:
        handle = await self.start_batch(spec, batch_id)
        return await handle.result()

    async def audit(self, batch_id: str) -> Any:
        return await self.ledger.audit(batch_id, self.artifacts)


def system_settings(directory: Path, database_url: str, deployment_id: str, **changes: Any) -> Settings:
    """Settings of a system below `directory`, on a task queue of its own."""
    queue = changes.pop("queue", f"q-{uuid.uuid4().hex[:8]}")
    return load_settings(
        _env_file=None,
        state_dir=directory,
        deployment_id=deployment_id,
        database_url=database_url,
        artifact_url=(directory / "artifacts").as_uri(),
        task_queue=queue,
        allow_null_desktop=True,
        heartbeat_s=changes.pop("heartbeat_s", 5),
        pump_slice_s=changes.pop("pump_slice_s", 5),
        **changes,
    )


@asynccontextmanager
async def running_system(settings: Settings, temporal_address: str, *, workers: bool = True) -> AsyncIterator[System]:
    """A migrated ledger, connections and (unless requested otherwise) a worker for all roles in this process."""
    from worker_main import make_worker, queues

    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()
    await asyncio.to_thread(upgrade, url)
    await let_roles_log_in(url)
    async with AsyncExitStack() as stack:
        # no pool: tests kill Postgres, and the test's own connections must not notice
        ledger = Ledger(create_async_engine(url, poolclass=NullPool, json_serializer=canonical_json))
        stack.push_async_callback(ledger.aclose)
        services = await open_services(as_login(settings, "worker"))
        stack.push_async_callback(services.close)
        identity = worker_identity(settings.deployment_id)
        client = await Client.connect(temporal_address, plugins=[RollbookPlugin()], identity=identity)
        if workers:
            for queue, work in queues("all", services, client).items():
                await stack.enter_async_context(make_worker(client, queue, work, settings))
        yield System(settings, services, client, ledger)


def as_login(settings: Settings, role: LedgerRole) -> Settings:
    """The settings of a process that connects to the ledger as a role, as in the local stack."""
    assert settings.database_url is not None
    url = as_role(settings.database_url.get_secret_value(), role)
    return settings.model_copy(update={"database_url": SecretStr(url)})


class WorkerProcess:
    """`worker_main.py` as a process that can be killed."""

    def __init__(
        self,
        settings: Settings,
        temporal_address: str,
        log: Path,
        role: str = "all",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._address = temporal_address
        self._log = log
        self._role = role
        self._environment = environment or {}
        self._process: asyncio.subprocess.Process | None = None
        self.ready_file = log.with_suffix(".ready")

    def environment(self) -> dict[str, str]:
        """Settings as variables."""
        return {
            **os.environ,
            **as_login(self._settings, "worker").environment(),
            "TEMPORAL_ADDRESS": self._address,
            "ROLLBOOK_READY_FILE": str(self.ready_file),
            **self._environment,
        }

    async def start(self) -> None:
        """Start and wait until it polls."""
        self.ready_file.unlink(missing_ok=True)
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *WORKER_COMMAND,
                "--role",
                self._role,
                env=self.environment(),
                stdout=output,
                stderr=output,
                cwd=PROJECT_ROOT,
            )
        async with asyncio.timeout(60):
            while not self.ready_file.exists():
                if self._process.returncode is not None:
                    raise AssertionError(f"the worker ended: {self._log.read_text()[-2000:]}")
                await asyncio.sleep(0.1)

    @property
    def alive(self) -> bool:
        """True until it ends by itself or is ended."""
        return self._process is not None and self._process.returncode is None

    async def kill9(self) -> None:
        """End it as a crash would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Let it drain."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()
        self._process = None
