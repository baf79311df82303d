"""One episode: what its workflow and activities hand to each other. References and small facts only."""

from typing import Literal

from pydantic import Field

from models.base import Wire
from models.evidence import ArtifactRef
from models.outcome import Infra, OutcomeFacts, TerminalAction


class EpisodeStart(Wire):
    """Input of the Episode workflow: one logical rollout."""

    rollout_key: str


class ClaimRequest(Wire):
    """Claim attempt number `n` (1, 2, … within this run) of a rollout. The run id comes from the activity."""

    rollout_key: str
    n: int = Field(ge=1)


class EpisodePlan(Wire):
    """What the workflow must know of the contract; the activities read the rest from the ledger."""

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
    """Seconds the desktop is left alone after one action."""
    policy: str = ""
    artifact_url: str = ""
    """Base URL of the read-only artifact server; empty when there is none."""
    desktop_queue: str
    osworld_queue: str
    heartbeat_s: float = 30
    """Heartbeat timeout of long activities; must exceed a fail-over of the Temporal server."""
    lease_s: float = 3600
    """How long a desktop's lease lasts without renewal."""


class Claimed(Wire):
    """Answer to a claim."""

    status: Literal["claimed", "final", "stopping"]
    attempt_index: int = 0
    run_id: str = ""
    """The run that made the claim: after a reset, another one than the run that reads this."""
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
    isolation: str = "partial"
    view_url: str = ""
    """Loopback live view of the desktop, without a password."""


class DesktopRequest(Wire):
    """An activity that needs the desktop."""

    attempt: AttemptRef
    desktop: DesktopRef


class Observation(Wire):
    """What was seen; the bytes are in the artifact store."""

    screenshot: ArtifactRef
    accessibility_tree: ArtifactRef | None = None
    terminal: ArtifactRef | None = None


class DecideRequest(Wire):
    """Ask the policy for the next step."""

    attempt: AttemptRef
    step: int = Field(ge=1)
    observation: Observation


class Decision(Wire):
    """What the policy said, in facts. The actions themselves are in the ledger (`model_call`)."""

    action_count: int = 0
    """Actions to run on the desktop, terminal ones excluded."""
    terminal_action: TerminalAction | None = None
    policy_stop_reason: str | None = None
    model_call_completed: bool = True
    summary: str = ""
    """One short line for people."""


class PhaseDone(Wire):
    """A phase of the task that has ended well."""

    files: dict[str, ArtifactRef] = {}
    """What its commands wrote into OSWorld's cache: the evaluator may read it there."""


class ActRequest(DesktopRequest):
    """Run the stored actions of one step, settle, then observe."""

    step: int = Field(ge=1)


class Acted(Wire):
    """What came of a step's actions."""

    observation: Observation
    in_doubt: int = 0
    """Actions claimed in the guest whose result is unknown; they are never run again."""
    raised: int = 0
    """Actions whose code raised in the guest: the policy's doing, not a failure."""
    failure: Infra | None = None
    """Set when an action failed or ran out of time; the observation still holds what was seen after it."""


class EvaluateRequest(DesktopRequest):
    """Score the desktop with OSWorld's evaluator."""

    terminal_action: TerminalAction | None = None
    files: dict[str, ArtifactRef] = {}
    """What setup and postconfig left in OSWorld's cache."""


class Evaluated(Wire):
    """The committed evaluation of an attempt; `score` is None unless the evaluator completed."""

    completed: bool
    score: float | None = None
    guest_failed: bool = False
    reason: Infra | None = None
    detail: str = ""


class FinalizeRequest(Wire):
    """End an attempt: outcome, runtime admission and selection in one transaction."""

    attempt: AttemptRef
    facts: OutcomeFacts
    steps: int = Field(ge=0)
    guest_failed: bool = False
    detail: str = ""
    """First 2,000 characters of the error, for people."""


class Finalized(Wire):
    """What the ledger made of the end of an attempt."""

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
