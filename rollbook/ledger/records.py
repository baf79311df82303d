"""Inputs and results of the ledger's calls, where `models` has no type for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from models.base import Sha256, Wire
from models.contract import Contract
from models.episode import Observation
from models.evidence import ArtifactRef
from models.outcome import CauseKind, Infra, NonBlank, TerminalAction
from models.sanitize import LARGEST_COUNT, sanitize
from rollbook.ledger.sanitize import redact_text

UnitFloat = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
"""A finite number within 0..1; bool, NaN and infinities are refused."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Clean = Annotated[str, BeforeValidator(redact_text)]
"""Text that Postgres can hold, without secrets, see `rollbook.ledger.sanitize`."""
CleanJson = Annotated[dict[str, Any], BeforeValidator(redact_text)]
"""JSON that Postgres can hold, without secrets."""
Action = Annotated[str, BeforeValidator(sanitize)]
"""An action as it will run."""


def _countable(value: Any) -> Any:
    return None if type(value) is int and not 0 <= value <= LARGEST_COUNT else value


Count = Annotated[int | None, BeforeValidator(_countable)]
"""A number that others counted; null when no column can hold it (their own words are in the artifact store)."""


@dataclass(frozen=True, slots=True)
class RegisteredSet:
    """A task set under its name."""

    name: str
    set_digest: str
    tasks: int
    """Tasks in the set."""
    added: int
    """Task documents that the ledger did not hold before."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Result of registering a batch (see models.batch.RegisteredBatch)."""

    batch_id: str
    planned: int
    added: int
    final: int
    notice: str = ""


@dataclass(frozen=True, slots=True)
class BatchControl:
    """The control columns of a batch."""

    batch_id: str
    paused: bool
    frozen: bool
    stopping: bool
    cancelling: bool
    concurrency: int
    max_attempts: int
    launch_id: str
    closed_at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class StartRow:
    """A rollout to start an Episode for; `rollout_key` is its workflow id."""

    rollout_key: str
    batch_id: str
    domain: str
    task_id: str
    sample: int
    policy: str
    """For people and search attributes: scripted, noop or the model's name."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Answer to a claim; everything an episode needs is there when it is `claimed`."""

    status: Literal["claimed", "final", "stopping"]
    rollout_key: str
    attempt_index: int = 0
    batch_id: str = ""
    domain: str = ""
    task_id: str = ""
    sample: int = 0
    task_digest: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    contract: Contract | None = None
    contract_digest: str = ""
    policy: str = ""
    group_id: str = ""
    execution_id: UUID | None = None
    trajectory_rollout_id: str = ""
    max_attempts: int = 0


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """The attempt that an activity works for."""

    rollout_key: str
    attempt_index: int
    batch_id: str
    deployment_id: str
    domain: str
    task_id: str
    sample: int
    task_digest: str
    contract: Contract
    contract_digest: str
    task: dict[str, Any]
    """The task's document, in OSWorld's format."""
    execution_id: UUID
    trajectory_rollout_id: str
    identity_source: str = "derived"
    sampling_event_id: str | None = None
    source_group_id: str | None = None
    group_id: str = ""
    rollout_index: int = 0


class ModelCall(Wire):
    """One call of the policy for one step; parser retries are calls of their own."""

    step: int = Field(ge=1)
    parse_attempt: int = Field(default=1, ge=1)
    policy_kind: NonBlank
    actions: list[Action] = []
    """The parsed actions, terminal ones excluded, in their order."""
    terminal_action: TerminalAction | None = None
    policy_stop_reason: NonBlank | None = None
    completed: StrictBool = True
    """The call returned a reply."""
    accepted: StrictBool = True
    """The reply parsed and is acted upon."""
    parse_error: Clean | None = None
    failure_kind: Clean | None = None
    finish_reason: Clean | None = None
    summary: Annotated[Clean, Field(max_length=500)] = ""
    prompt: ArtifactRef | None = None
    response: ArtifactRef | None = None
    model_name: Clean | None = None
    model_version: Clean | None = None
    prompt_tokens: Count = None
    completion_tokens: Count = None
    latency_s: Seconds | None = None
    telemetry: CleanJson | None = None
    image: ArtifactRef | None = None
    """The current screen as sent."""
    tokens: ArtifactRef | None = None
    """Token ids and logprobs."""
    said: CleanJson | None = None
    """Content, reasoning and tool calls of the reply; the thought and action text kept of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A model call as the ledger holds it, for policies, evidence and exports; its fields are columns of `model_call`.

    `ModelCall` is what is committed: there the artifacts are references with size and type, the text may still need
    redaction, and the database has not computed its columns yet.
    """

    step: int
    parse_attempt: int
    policy_kind: str
    completed: bool
    accepted: bool
    actions: list[str]
    terminal_action: TerminalAction | None = None
    policy_stop_reason: str | None = None
    parse_error: str | None = None
    failure_kind: str | None = None
    finish_reason: str | None = None
    model_name: str | None = None
    model_version: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_s: float | None = None
    summary: str
    decides: bool
    """It is acted upon, or ends the episode by the policy's own output (a generated column)."""
    prompt_sha256: str | None = None
    response_sha256: str | None = None
    image_sha256: str | None = None
    tokens_sha256: str | None = None
    telemetry: dict[str, Any] | None = None
    said: dict[str, Any] | None = None
    row_digest: str

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Self:
        """The record in a row that has at least its columns."""
        return cls(**{name: row[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn as the ledger holds it."""

    step: int
    observation: Observation
    actions: list[dict[str, Any]]
    """Result of each action; `status` is ok, raised, timeout, in_doubt or refused."""


@dataclass(frozen=True, slots=True)
class StepSoFar:
    """State of an attempt before an activity works on a step of it."""

    context: AttemptContext
    call: CallRecord | None
    """The call that decided the step; None before it."""
    turn: StoredTurn | None
    """The step's turn; None before it."""


class Evaluation(Wire):
    """The evaluator's answer. Without a score there is a reason; a score is never made up."""

    completed: StrictBool
    score: UnitFloat | None = None
    score_type: Clean | None = None
    reason: Infra | None = None
    guest_failed: StrictBool = False
    detail: Annotated[Clean, Field(max_length=20_000)] = ""
    evaluator_revision: Clean | None = None
    numpy_version: Clean | None = None
    task_digest: Sha256
    isolation: Clean = ""
    exchanges: CleanJson | None = None
    log: ArtifactRef | None = None
    duration_s: Seconds | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Evaluation":
        if self.completed != (self.score is not None):
            raise ValueError("score: set exactly when the evaluation completed")
        if self.completed != (self.reason is None):
            raise ValueError("reason: set exactly when the evaluation did not complete")
        if self.completed and self.guest_failed:
            raise ValueError("guest_failed: an evaluation that could not look is not completed")
        return self


StoredEvaluation = Evaluation
"""An evaluation as the ledger holds it: the one that was committed first."""


class Phase(Wire):
    """A run of OSWorld's code against the desktop."""

    phase: Literal["setup", "postconfig", "evaluation"]
    token: str
    ok: StrictBool
    guest_failed: StrictBool = False
    detail: Annotated[Clean, Field(max_length=2000)] = ""
    exchanges: CleanJson = {}
    pressure: CleanJson | None = None
    log: ArtifactRef | None = None
    screenshot: ArtifactRef | None = None
    started_at: datetime
    duration_s: Seconds | None = None


class Examination(Wire):
    """An attempt's desktop as its provider saw it from outside."""

    cause: CauseKind | None = None
    cause_detail: Annotated[Clean, Field(max_length=2000)] = ""
    tampered: StrictBool = False
    detail: Annotated[Clean, Field(max_length=2000)] = ""
    evidence: CleanJson | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a desktop."""

    sandbox_key: str
    deployment_id: str
    provider: str
    sandbox_id: str | None
    rollout_key: str
    attempt_index: int
    state: Literal["intended", "running", "stopped"]
    nonce: str | None
    isolation: str | None
    view_url: str
    created_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    attempt_open: bool
    """The attempt it was made for has no outcome yet."""
    lease_expired: bool


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row that claims to be under way and has been quiet for a while."""

    rollout_key: str
    workflow_id: str
    """Of the open attempt: people may start an Episode under another id than the rollout's key."""
    batch_id: str
    state: Literal["queued", "running"]
    attempt_index: int | None
    """The open attempt; None for a row that was queued or is between attempts."""
    run_id: str
    """Run of the open attempt; empty without one."""
    since: datetime
    seen: int
    """Times in a row that its workflow was not found."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something an audit found."""

    kind: str
    subject: str
    """The rollout, artifact, task, … it is about."""
    detail: str


@dataclass(frozen=True, slots=True)
class TemporalServer:
    """Identity of a Temporal server, as far as workflows are concerned."""

    namespace_id: str
    cluster_id: str = field(compare=False)
    """For people. A namespace that fails over to another cluster keeps its id and its workflows."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The proof of a roll call, or what is wrong with it."""

    batch_id: str
    ok: bool
    planned: int
    final: int
    findings: list[Finding]
    """Errors: any of these and the batch is not proven."""
    notices: list[Finding]
    """Facts worth knowing, for instance superseded results."""
    artifacts_checked: int
    excluded: int = 0
    """Tasks that the batch leaves out; their rollouts are not planned."""
    digest: str = ""
    """Digest of the batch as it is now."""
    completions: list[str] = field(default_factory=list)
    """Digests of the batch whenever it was complete, the first one first."""
