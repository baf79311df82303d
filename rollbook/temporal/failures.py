"""Failures small enough for Temporal to keep while an activity is tried again.

A failure of more than 4 KB is replaced by "Failure exceeds size limit.", which is useless in `status` or
the Temporal UI; a broken connection with its chain of causes, each with a stack trace, has ten. The worker's log has
all of it.
"""

from collections.abc import Iterator

from temporalio.api.failure.v1 import Failure

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
