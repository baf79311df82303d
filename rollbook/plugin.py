"""One Temporal plugin: converter, workflows, activities and sandbox pass-through, the same for workers, clients,
tests and the replayer, so that they cannot drift apart."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from rollbook.redaction import redact

PASS_THROUGH = ("models",)
"""Modules that workflows share with the worker. `models` is pure, which a test and the linter watch."""


def sandbox_runner() -> SandboxedWorkflowRunner:
    """The workflow sandbox, with `models` passed through."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASS_THROUGH))


class RedactingFailureConverter(DefaultFailureConverter):
    """Keeps secrets out of the failures that histories hold, those of foreign exceptions included."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert as usual (causes by way of this method too), then redact."""
        super().to_failure(exception, payload_converter, failure)
        failure.message = redact(failure.message)
        failure.stack_trace = redact(failure.stack_trace)


DATA_CONVERTER = dataclasses.replace(pydantic_data_converter, failure_converter_class=RedactingFailureConverter)


class RollbookPlugin(SimplePlugin):
    """Give it to `Client.connect`; workers made from that client have it too."""

    def __init__(self, workflows: Sequence[type] = (), activities: Sequence[Callable[..., Any]] = ()) -> None:
        super().__init__(
            "rollbook",
            data_converter=DATA_CONVERTER,
            workflows=list(workflows) or None,
            activities=list(activities) or None,
            workflow_runner=_runner,
        )


def _runner(configured: WorkflowRunner | None) -> WorkflowRunner:
    return sandbox_runner()
