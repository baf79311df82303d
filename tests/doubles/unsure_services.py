"""A Temporal client and a provider of desktops that fail, or answer as instructed.

For the failures of reconciliation only, which a real server cannot be made to show one by one. What they cannot prove:
that a real server reports a workflow, a run or a desktop like this; tests/integration/test_janitor.py does that.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from rollbook.errors import ProviderUnavailable
from rollbook.sandboxes.null import NullProvider
from rollbook.sandboxes.provider import SandboxInfo, SandboxStatus

RUNNING, TERMINATED = WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.TERMINATED


def rpc_error(status: RPCStatusCode) -> RPCError:
    """The SDK's exception for a failed call."""
    return RPCError(f"rehearsed: {status.name}", status, b"")


@dataclass
class UnsureTemporal:
    """A client whose workflows are those of `known`; the rest is not found."""

    namespace: str = "default"
    known: dict[str, Any] = field(default_factory=dict)
    """Status by workflow id, or an error to raise."""
    listed: list[tuple[str, str]] | RPCError = field(default_factory=list)
    """Workflow id and run id of the listing of running episodes, or an error to raise."""
    on_cancel: RPCError | None = None
    cancels: list[tuple[str, str | None]] = field(default_factory=list)
    """Workflow id and run id of each requested end."""

    def get_workflow_handle(self, workflow_id: str, *, run_id: str | None = None) -> "_Handle":
        """A handle for the calls that the Janitor makes."""
        return _Handle(self, workflow_id, run_id)

    async def list_workflows(self, query: str) -> AsyncIterator[Any]:
        """The listing, whatever the query."""
        if isinstance(self.listed, RPCError):
            raise self.listed
        for workflow_id, run_id in self.listed:
            yield SimpleNamespace(id=workflow_id, run_id=run_id)


@dataclass
class _Handle:
    client: UnsureTemporal
    id: str
    run_id: str | None

    async def describe(self) -> Any:
        found = self.client.known.get(self.id, rpc_error(RPCStatusCode.NOT_FOUND))
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(status=found)

    async def cancel(self) -> None:
        self.client.cancels.append((self.id, self.run_id))
        if self.client.on_cancel:
            raise self.client.on_cancel


class UnsureProvider(NullProvider):
    """Desktops are names; the listing and the removal fail on demand."""

    def __init__(self, name: str = "null") -> None:
        self.name = name
        self.keys: list[str] = []
        self.stopped: list[str] = []
        self.is_away = False

    async def stop(self, sandbox_id: str) -> None:
        """Note it, or fail."""
        self._answer()
        self.stopped.append(sandbox_id)

    async def stop_key(self, key: str) -> int:
        """Remove the key from the listing, or fail."""
        self._answer()
        self.stopped.append(key)
        self.keys = [one for one in self.keys if one != key]
        return 1

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """The keys, or fail."""
        self._answer()
        wanted = labels.get("rollbook.key")
        return [
            SandboxInfo(f"id-{key}", key, SandboxStatus.RUNNING, datetime.now(UTC), labels)
            for key in self.keys
            if wanted in (None, key)
        ]

    def _answer(self) -> None:
        if self.is_away:
            raise ProviderUnavailable(f"rehearsed: {self.name} does not answer")
