"""One Temporal plugin: converter, workflows, activities and sandbox pass-through, the same for workers, clients,
tests and the replayer, so that they cannot drift apart."""

from collections.abc import Callable, Sequence
from typing import Any

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

PASS_THROUGH = ("models",)
"""Modules that workflows share with the worker. `models` is pure, which a test and the linter watch."""


def sandbox_runner() -> SandboxedWorkflowRunner:
    """The workflow sandbox, with `models` passed through."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASS_THROUGH))


class RollbookPlugin(SimplePlugin):
    """Give it to `Client.connect`; workers made from that client have it too."""

    def __init__(self, workflows: Sequence[type] = (), activities: Sequence[Callable[..., Any]] = ()) -> None:
        super().__init__(
            "rollbook",
            data_converter=pydantic_data_converter,
            workflows=list(workflows) or None,
            activities=list(activities) or None,
            workflow_runner=_runner,
        )


def _runner(configured: WorkflowRunner | None) -> WorkflowRunner:
    return sandbox_runner()
