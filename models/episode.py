"""Messages between an Episode and its activities. References and small facts only: they stay in the history."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from models.base import Wire
from models.evidence import ArtifactRef
from models.explain import explain
from models.outcome import Cause, Infra, OutcomeFacts, TerminalAction


class EpisodeStart(Wire):
    """Input of the Episode workflow: one logical rollout."""

    rollout_key: str
    attempts: int = Field(default=0, ge=0)
    """Attempts that earlier runs of this episode made before it continued as new."""
    frozen: bool = False
    """Set when an earlier run was frozen at its end."""


def read_start(inputs: Sequence[Any]) -> EpisodeStart:
    """Read the input of an Episode from any client. Raises ValueError that names the field."""
    if len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise ValueError("the input must be one JSON object with rollout_key")
    try:
        return EpisodeStart.model_validate(inputs[0])
    except ValidationError as error:
        raise ValueError(explain(error)) from error


class ClaimRequest(Wire):
    """Claim attempt number `n` (1, 2, … within this run) of a rollout. The run id comes from the activity."""

    rollout_key: str
    n: int = Field(ge=1)


class EpisodePlan(Wire):
    """The part of the contract that the workflow needs; activities read the rest from the ledger."""

    batch_id: str
    task_id: str
    domain: str
    sample: int
    instruction: str
    """First 500 characters, for people."""
    max_steps: int
    deadline_s: float
    model_timeout_s: float
    action_timeout_s: float
    setup_timeout_s: float
    evaluate_timeout_s: float
    start_timeout_s: float
    settle_s: float = 0
    """Pause after one action, seconds."""
    policy: str = ""
    artifact_url: str = ""
    """Base URL of the read-only artifact server; empty when there is none."""
    desktop_queue: str
    osworld_queue: str
    heartbeat_s: float = 30
    """Heartbeat timeout of long activities; must exceed a fail-over of the Temporal server."""
    lease_s: float = 3600
    """Duration of a desktop's lease without renewal, seconds."""


class Claimed(Wire):
    """Answer to a claim."""

    status: Literal["claimed", "final", "stopping"]
    attempt_index: int = 0
    run_id: str = ""
    """The run that made the claim; after a reset it differs from the run that reads the answer."""
    plan: EpisodePlan | None = None


class AttemptRef(Wire):
    """The attempt that an activity works for; with the run id of the activity it is the fence."""

    rollout_key: str
    attempt_index: int = Field(ge=1)


class DesktopRef(Wire):
    """The desktop of an attempt, as the ledger knows it. No password, no token."""

    provider: str
    sandbox_id: str
    sandbox_key: str
    ports: dict[int, int] = {}
    """Host port of each declared guest port, where the provider publishes ports on this host."""
    nonce: str
    """Identity of the guest's boot; another one means another desktop."""
    server: str = ""
    """The guest server's process as the provider saw it from outside; empty where it cannot."""
    isolation: str = "partial"
    image_digest: str = ""
    """Digest of the image that it was made from; empty where its provider has none."""
    view_url: str = ""
    """Loopback live view of the desktop, without a password."""


class DesktopRequest(Wire):
    """An activity that needs the desktop."""

    attempt: AttemptRef
    desktop: DesktopRef


class Observation(Wire):
    """An observation of the desktop; the bytes are in the artifact store."""

    screenshot: ArtifactRef
    accessibility_tree: ArtifactRef | None = None
    terminal: ArtifactRef | None = None


class Observed(Wire):
    """Answer to the first look."""

    observation: Observation
    worked_s: float = 0
    """Seconds of work of the try that succeeded; also in the other answers. A repeat that finds it done reports 0."""


class DecideRequest(Wire):
    """Ask the policy for the next step."""

    attempt: AttemptRef
    step: int = Field(ge=1)
    observation: Observation
    budget_s: float | None = None
    """Seconds of work that the deadline leaves; None: any."""


class Decision(Wire):
    """The policy's answer to one step. The actions themselves are in the ledger (`model_call`)."""

    action_count: int = 0
    """Actions to run on the desktop, terminal ones excluded."""
    terminal_action: TerminalAction | None = None
    policy_stop_reason: str | None = None
    model_call_completed: bool = True
    worked_s: float = 0
    """Seconds of the step's calls that were answered."""
    summary: str = ""
    """One short line for people."""


class PhaseDone(Wire):
    """Answer of a phase of the task that succeeded."""

    files: dict[str, ArtifactRef] = {}
    """Files that its commands wrote into OSWorld's cache, where the evaluator may read them."""
    worked_s: float = 0


class ActRequest(DesktopRequest):
    """Run the stored actions of one step, settle, then observe."""

    step: int = Field(ge=1)


class Acted(Wire):
    """Results of a step's actions."""

    observation: Observation
    in_doubt: int = 0
    """Actions claimed in the guest whose result is unknown; they are never run again."""
    raised: int = 0
    """Actions whose code raised in the guest: caused by the policy, so not an infrastructure failure."""
    failure: Infra | None = None
    """Set when an action failed or timed out; the observation was still taken after it."""
    worked_s: float = 0


class EvaluateRequest(DesktopRequest):
    """Score the desktop with OSWorld's evaluator."""

    terminal_action: TerminalAction | None = None
    files: dict[str, ArtifactRef] = {}
    """Files that setup and postconfig left in OSWorld's cache."""


class Evaluated(Wire):
    """The committed evaluation of an attempt; `score` is None unless the evaluator completed."""

    completed: bool
    score: float | None = None
    guest_failed: bool = False
    reason: Infra | None = None
    detail: str = ""


class ExamineRequest(DesktopRequest):
    """Look at the desktop from outside at the end of its attempt."""

    failed: bool = False
    """Something failed: find out whose doing it was."""


class Examined(Wire):
    """The committed examination of an attempt's desktop, by its provider."""

    cause: Cause | None = None
    """None when nothing had failed."""
    tampered: bool = False
    """The guest server is not the image's."""
    detail: str = ""
    """Evidence of that, in words."""


class FinalizeRequest(Wire):
    """End an attempt: outcome, runtime admission and selection in one transaction."""

    attempt: AttemptRef
    facts: OutcomeFacts
    steps: int = Field(ge=0)
    guest_failed: bool = False
    refused: bool = False
    """The model server refuses what another attempt would send again."""
    detail: str = ""
    """First 2,000 characters of the error, for people."""


class Finalized(Wire):
    """Answer to the end of an attempt."""

    termination_reason: str
    admitted: bool
    score: float | None = None
    reward: float | None = None
    another_attempt: bool = False
    selected: bool = False


class EpisodeResult(Wire):
    """Result of the Episode workflow."""

    rollout_key: str
    status: Literal["final", "already final", "stopping", "superseded"]
    attempts: int = 0
    termination_reason: str | None = None
    admitted: bool = False
    score: float | None = None
    reward: float | None = None
