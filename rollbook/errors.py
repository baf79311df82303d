"""The exception tree.

RollbookError
├── ConfigError            a setting or profile is missing or wrong (names the setting and the fix)
│   ├── ForeignDeployment  work of another deployment that polls the same task queue; its own worker will take it
│   └── ForeignServer      a Temporal server that does not have the workflows which the ledger names
├── InvalidInput           a spec, task or argument is wrong (names the field and the fix)
│   └── SpecConflict       the batch exists with another contract; carries the difference
├── LedgerError
│   ├── Fenced             a write by an attempt that is no longer the current one
│   ├── BatchStopping      a claim while the batch is stopping or cancelled
│   └── LedgerConflict     a write that contradicts a recorded fact
├── OutOfTime              no call was made: the time of this try does not suffice for one; another try goes on
├── ArtifactError          an artifact is missing or its bytes do not match its digest
└── InfraError             something outside the policy failed; carries a `reason` of the closed vocabulary
    ├── CapacityBusy       no room for another desktop now; retry later (never counted as an attempt)
    ├── ProviderUnavailable  who gives desktops does not answer; retried, no desktop is proven dead by it
    ├── SandboxStartFailed reason sandbox_start_failed
    ├── SandboxLost        reason sandbox_lost: the desktop is gone or is another one
    ├── DesktopBroken      reason desktop_broken: the guest is alive and does not do what its image does
    │   └── ActionFailed       an action could not be delivered
    ├── SetupFailed        reason setup_failed
    ├── SetupInterrupted   reason setup_interrupted
    ├── ActionTimeout      reason action_timeout
    ├── ActionTooLong      reason rollout_error: nothing was sent
    ├── ModelCallFailed    reason model_call_failed
    │   ├── ModelRefused       the server refuses what will not change: no other attempt helps
    │   └── CallError          a call of the model client
    │       ├── ContextOverflow    the prompt does not fit: shrink the history and plan again, never repeat as it is
    │       ├── RateLimited        429, or 503 that names a time; `retry_after_s` is the server's wish
    │       ├── AuthFailed         401 or 403: the profile's key is wrong
    │       ├── BadRequest         another 4xx: repeating it cannot help
    │       └── TransportFailed    5xx, refused, reset, cut, or no chat completion: repeating it may help
    ├── ModelTimeout       reason model_timeout
    ├── DeadlinePassed     reason timeout: the episode's deadline came during a decision
    ├── EvaluationInterrupted  reason evaluation_interrupted
    └── EvaluatorError     reason evaluator_error
"""

from typing import ClassVar, Literal

from rollbook.redaction import redact, redact_bytes

BODY_LIMIT = 16 * 1024
"""Bytes of a refusal's body that are kept as evidence. The body of a 200 is a model's answer: it is kept whole."""


class RollbookError(Exception):
    """Root of everything that Rollbook raises on purpose."""


class ConfigError(RollbookError):
    """A setting or profile is missing or wrong; the message names it and the fix."""


class ForeignDeployment(ConfigError):
    """The work belongs to another deployment, which polls the same task queue."""


class ForeignServer(ConfigError):
    """This Temporal server is not the one on which the deployment's workflows live."""


class InvalidInput(RollbookError):
    """A spec, task or argument is wrong; the message names the field and the fix."""


class SpecConflict(InvalidInput):
    """The batch exists with another contract; the message holds a readable difference."""


class LedgerError(RollbookError):
    """The ledger refused a write."""


class Fenced(LedgerError):
    """The write came from an attempt or run that is no longer the current one."""


class BatchStopping(LedgerError):
    """The batch is stopping or cancelled: nothing new may be claimed."""


class LedgerConflict(LedgerError):
    """The write contradicts a fact that is already recorded."""


class OutOfTime(RollbookError):
    """Nothing was asked: another try of the step has the time for it, and goes on from the rows there are."""


class ArtifactError(RollbookError):
    """An artifact is missing, or its bytes do not match its digest."""


class InfraError(RollbookError):
    """Something outside the policy failed.

    `reason` is a termination reason of the closed vocabulary (docs/reference/upstream-contract.md).
    """

    reason: ClassVar[str] = "rollout_error"


class CapacityBusy(InfraError):
    """No room for another desktop now. Retry after `retry_after_s` seconds; never counts as an attempt."""

    reason: ClassVar[str] = "sandbox_start_failed"

    def __init__(self, message: str, retry_after_s: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ProviderUnavailable(InfraError):
    """The provider of desktops did not answer or could not say: neither life nor death of a desktop is proven.

    Asking again is harmless and is done; only when the provider stays away is the desktop counted as lost.
    """

    reason: ClassVar[str] = "sandbox_lost"


class SandboxStartFailed(InfraError):
    """The desktop could not be created or did not become ready."""

    reason: ClassVar[str] = "sandbox_start_failed"


class SandboxLost(InfraError):
    """The desktop is gone, or another one answers in its place."""

    reason: ClassVar[str] = "sandbox_lost"


class DesktopBroken(InfraError):
    """The guest is alive and does not do what every desktop of its image does.

    Before the agent's first action the episode counts it as a lost desktop.
    """

    reason: ClassVar[str] = "desktop_broken"


class ActionFailed(DesktopBroken):
    """An action could not be delivered although the desktop is alive."""


class ActionTooLong(InfraError):
    """An action's code is longer than any desktop is sent."""

    reason: ClassVar[str] = "rollout_error"


class SetupFailed(InfraError):
    """A setup step of the task failed while the desktop was alive."""

    reason: ClassVar[str] = "setup_failed"


class SetupInterrupted(InfraError):
    """Setup began once already and its result is unknown: the desktop is dirty."""

    reason: ClassVar[str] = "setup_interrupted"


class ActionTimeout(InfraError):
    """An action did not finish within its deadline."""

    reason: ClassVar[str] = "action_timeout"


class ModelCallFailed(InfraError):
    """The model endpoint gave no usable reply."""

    reason: ClassVar[str] = "model_call_failed"


class ModelRefused(ModelCallFailed):
    """The server refused the call for a reason that another attempt would meet again: key, model, form, size."""


class CallError(ModelCallFailed):
    """A failed call of the model client: message and body as the server sent them, redacted."""

    failure_kind: ClassVar[Literal["context_overflow", "transport_error"]] = "transport_error"
    """Kind of the failed call."""
    repeatable: ClassVar[bool] = False
    """True if the same request may succeed later."""

    def __init__(self, message: str, *, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(redact(message))
        self.status = status
        """HTTP status; None when there was no answer."""
        body = redact_bytes(body)  # before it is cut: half a secret would not be recognized
        self.body = body if status in (None, 200) else body[:BODY_LIMIT]


class ContextOverflow(CallError):
    """The prompt and the reply do not fit into the model's context, or the body is too large for the server (413)."""

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
    """No reply, half a reply, a server error, or a body that is not a chat completion."""

    repeatable = True


class ModelTimeout(InfraError):
    """The model call did not finish within its deadline."""

    reason: ClassVar[str] = "model_timeout"


class DeadlinePassed(InfraError):
    """The episode's deadline came while the policy decided."""

    reason: ClassVar[str] = "timeout"


class EvaluationInterrupted(InfraError):
    """Postconfig began once already and its result is unknown: the desktop is dirty."""

    reason: ClassVar[str] = "evaluation_interrupted"


class EvaluatorError(InfraError):
    """The evaluator raised, was killed, or could not look at the desktop.

    `guest_failed`: an exchange with the guest failed, and a new attempt may help.
    """

    reason: ClassVar[str] = "evaluator_error"

    def __init__(self, message: str, guest_failed: bool = False) -> None:
        super().__init__(message)
        self.guest_failed = guest_failed
