"""How a model call fails. All but the deadline are `ModelCallFailed`, so a caller may catch that one.

ModelCallFailed            (rollbook.errors) reason model_call_failed
├── ContextOverflow        the prompt does not fit: shrink the history and plan again, never repeat as it is
├── RateLimited            429 or 503; `retry_after_s` is the server's wish
├── AuthFailed             401 or 403: the profile's key is wrong
├── BadRequest             another 4xx: repeating it cannot help
└── TransportFailed        5xx, refused, reset, cut, or no chat completion: repeating it may help
ModelTimeout               (rollbook.errors) reason model_timeout: the deadline of the call passed
OutOfTime                  no call was made: the time of this try does not suffice for one; another try goes on
"""

from typing import ClassVar, Literal

from rollbook.errors import ModelCallFailed, RollbookError
from rollbook.redaction import redact, redact_bytes

FailureKind = Literal["context_overflow", "transport_error"]

BODY_LIMIT = 16 * 1024
"""Bytes of a refusal's body that are kept as evidence. The body of a 200 is a model's answer: it is kept whole."""


class CallError(ModelCallFailed):
    """Common to all below: what the server said, secrets taken out."""

    failure_kind: ClassVar[FailureKind] = "transport_error"
    """Kind of the failed call (upstream contract §1.6)."""
    repeatable: ClassVar[bool] = False
    """Whether the same request may succeed later."""

    def __init__(self, message: str, *, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(redact(message))
        self.status = status
        """HTTP status; None when there was no answer."""
        self.body = redact_bytes(body if status in (None, 200) else body[:BODY_LIMIT])


class ContextOverflow(CallError):
    """The prompt and the reply do not fit into the model's context."""

    failure_kind = "context_overflow"


class RateLimited(CallError):
    """The server wants to be asked later."""

    repeatable = True

    def __init__(self, message: str, *, retry_after_s: float, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(message, status=status, body=body)
        self.retry_after_s = retry_after_s
        """Seconds to wait: the server's Retry-After, bounded; a default when it named none."""


class AuthFailed(CallError):
    """The server does not accept the key of the endpoint profile."""


class BadRequest(CallError):
    """The server does not accept the request; the message has its reason."""


class TransportFailed(CallError):
    """No reply, half a reply, a server error, or something that is no chat completion."""

    repeatable = True


class OutOfTime(RollbookError):
    """Nothing was asked: another try of the step has the time for it, and goes on from the rows there are."""
