"""One Temporal plugin: converter, workflows, activities and sandbox pass-through, the same for workers, clients,
tests and the replayer, so that they cannot drift apart."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadConverter,
)
from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from rollbook.redaction import redact

# Failures small enough for Temporal to keep while an activity is tried again.
#
# A failure of more than 4 KB is replaced by "Failure exceeds size limit.", which is useless in `status` or
# the Temporal UI; a broken connection with its chain of causes, each with a stack trace, has ten. The worker's log has
# all of it.


LIMIT_BYTES = 3500
"""Below the server's 4,096 (`limit.mutableStateActivityFailureSizeLimitError`), with room for what it adds itself."""
TRACE_CHARACTERS = 1000
"""The end of a stack trace, where the error was raised."""


def keep_small(failure: Failure) -> None:
    """Leave out stack traces of causes, the start of its own, the causes, the end of the message, until it fits.

    A final failure stays whole: it goes into the history, which has room, and may have more to explain.
    """
    if not failure.HasField("application_failure_info") or failure.application_failure_info.non_retryable:
        return
    for cut in (_traces_of_causes, _long_trace, _causes, _message):
        if failure.ByteSize() <= LIMIT_BYTES:
            return
        cut(failure)


def _chain(failure: Failure) -> Iterator[Failure]:
    while failure.HasField("cause"):
        failure = failure.cause
        yield failure


def _traces_of_causes(failure: Failure) -> None:
    for cause in _chain(failure):
        cause.stack_trace = ""


def _long_trace(failure: Failure) -> None:
    failure.stack_trace = failure.stack_trace[-TRACE_CHARACTERS:]


def _causes(failure: Failure) -> None:
    failure.ClearField("cause")


def _message(failure: Failure) -> None:
    room = LIMIT_BYTES - (failure.ByteSize() - len(failure.message.encode())) - 16
    failure.message = failure.message.encode()[: max(room, 200)].decode(errors="ignore")


PASS_THROUGH = ("models",)
"""Modules that workflows share with the worker. `models` is pure, which a test and the linter watch."""


def sandbox_runner() -> SandboxedWorkflowRunner:
    """The workflow sandbox, with `models` passed through."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASS_THROUGH))


class RedactingFailureConverter(DefaultFailureConverter):
    """Keeps secrets out of the failures that histories hold, those of foreign exceptions included; keeps them small."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert as usual (causes by way of this method too), then redact and shorten."""
        super().to_failure(exception, payload_converter, failure)
        failure.message = redact(failure.message)
        failure.stack_trace = redact(failure.stack_trace)
        keep_small(failure)


class _PlainJson(PydanticJSONPlainPayloadConverter):
    """Any JSON that another client could send is read; what it is worth, `read_spec` and the handlers say.

    pydantic refuses an unpaired surrogate ("\\ud83d"), and an input that is not read hangs its workflow for ever.
    """

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        """Read as pydantic does; as Python's `json` where that gives up and no type is asked for."""
        try:
            return super().from_payload(payload, type_hint)
        except ValidationError:
            if type_hint not in (None, Any):
                raise
            return json.loads(payload.data)


class _Payloads(CompositePayloadConverter):
    """The converters of the SDK with ours in place of its JSON."""

    def __init__(self) -> None:
        ours = _PlainJson()
        converters = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*(ours if isinstance(one, JSONPlainPayloadConverter) else one for one in converters))


DATA_CONVERTER = DataConverter(payload_converter_class=_Payloads, failure_converter_class=RedactingFailureConverter)


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
