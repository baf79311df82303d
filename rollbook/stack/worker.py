"""A worker process of the local stack (`worker_main.py --role all`)."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from rollbook.config.settings import PROJECT_ROOT
from rollbook.stack.children import Child, Command

WORKER_PROGRAM = PROJECT_ROOT / "worker_main.py"
READY_VARIABLE = "ROLLBOOK_READY_FILE"
"""A worker may write this file when it polls; otherwise its poller on the task queue tells."""


class Worker(Child):
    """One worker. Ready when it wrote its ready file or Temporal sees it polling for workflow tasks."""

    ready_timeout_s = 120.0

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
        argv = (sys.executable, str(WORKER_PROGRAM), "--role", "all")
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
        # The SDK's default identity is `pid@host`.
        assert self.ref is not None
        return any(poller.identity.startswith(f"{self.ref.pid}@") for poller in answer.pollers)
