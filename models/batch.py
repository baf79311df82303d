"""The batch: what people submit, the contract that gives its rollouts their meaning, and its control."""

from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from models.base import Input, Name, Wire
from models.caller import CallerIdentity
from models.contract import Purpose, agent_contract, agent_contract_id, difference
from models.explain import explain
from models.identity import digest
from models.outcome import RewardMode
from models.policy import NoopPolicy, OpenAIPolicy, Policy, ReplayPolicy, ScriptedPolicy, SetName
from models.sanitize import find_unstorable
from models.task import TaskFilter

__all__ = ["NoopPolicy", "OpenAIPolicy", "Policy", "ReplayPolicy", "ScriptedPolicy", "difference"]
"""Also found here, where specs are read."""


class Limits(Input):
    """The runner's limits; times in seconds."""

    max_steps: int = Field(default=15, ge=1, le=1000)
    deadline_s: float = Field(default=1800, gt=0, le=86_400)
    """From the moment the desktop is granted until the loop must end; evaluation follows it. Stops while frozen."""
    model_timeout_s: float = Field(default=900, gt=0, le=7200)
    action_timeout_s: float = Field(default=120, gt=0, le=600)
    """Per action. The guest itself kills an action after 120 s."""
    setup_timeout_s: float = Field(default=2400, gt=0, le=7200)
    evaluate_timeout_s: float = Field(default=1200, gt=0, le=7200)


class Settle(Input):
    """How long the desktop is left alone; seconds. Changing it changes what is observed, so it is in the contract."""

    after_setup_s: float = Field(default=2.0, ge=0, le=300)
    after_action_s: float = Field(default=2.0, ge=0, le=300)
    """After each action, before the next one or the observation (OSWorld's `sleep_after_execution`)."""
    before_evaluation_s: float = Field(default=2.0, ge=0, le=300)


class Desktop(Input):
    """Which desktop the rollouts run on."""

    provider: Literal["docker", "null"] = "docker"
    """`null` is the do-nothing desktop of benchmarks and rehearsals; workers refuse it unless told otherwise."""
    variant: Literal["slim"] = "slim"
    image: str | None = None
    """A full image reference instead of the built variant; None takes the worker's build of `variant`."""
    screen_width: int = Field(default=1920, ge=320, le=7680)
    screen_height: int = Field(default=1080, ge=240, le=4320)
    egress: Literal["auto", "none", "open"] = "auto"


class Observe(Input):
    """What an observation holds besides the screenshot."""

    accessibility_tree: bool = False
    terminal: bool = False


class AgentContract(Input):
    """Everything about agent, desktop and limits that changes the meaning of an episode."""

    policy: Policy
    limits: Limits = Limits()
    settle: Settle = Settle()
    desktop: Desktop = Desktop()
    observe: Observe = Observe()
    action_runtime: Literal["canonical", "exact-input"] = "canonical"
    reward_mode: RewardMode = "binary"
    seed: int = Field(default=0, ge=0, lt=2**53)
    purpose: Purpose = "eval"
    """What the rollouts are for. `rollout_purpose` is accepted as another name of it."""


class BatchSpec(AgentContract):
    """The one JSON object that BenchmarkBatch takes. Everything but `task_set` and `policy` has a default."""

    task_set: SetName
    tasks: TaskFilter = TaskFilter()
    samples: int = Field(default=1, ge=1, le=10_000)
    """Rollouts per task."""
    concurrency: int = Field(default=2, ge=1, le=10_000)
    """Episodes that run at once; changed while running by the signal `set_concurrency`."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """Attempts per rollout since the last rerun request."""
    extend: bool = False
    """Allow a relaunch to add tasks or samples."""
    identity: CallerIdentity | None = None
    """A trainer's own identity of the rollouts; without it they get a derived one, which is never trained on."""
    note: str = Field(default="", max_length=500)
    """Free text, shown with the batch."""

    @model_validator(mode="before")
    @classmethod
    def _one_purpose(cls, given: Any) -> Any:
        """Both carriers of the purpose must agree (upstream contract §1.7.19)."""
        if not isinstance(given, dict) or "rollout_purpose" not in given:
            return given
        rest = {name: value for name, value in given.items() if name != "rollout_purpose"}
        if rest.setdefault("purpose", given["rollout_purpose"]) != given["rollout_purpose"]:
            raise ValueError("'purpose' and 'rollout_purpose' contradict each other")
        return rest

    @field_validator("note")
    @classmethod
    def _printable(cls, value: str) -> str:
        if "\x00" in value:
            raise ValueError("must not contain NUL")
        return value


OPERATIONAL = frozenset({"task_set", "tasks", "samples", "concurrency", "max_attempts", "extend", "identity", "note"})
"""Keys of a spec that do not change what one rollout means: outside the contract."""


def read_spec(raw: Any) -> BatchSpec:
    """Validate a spec as any client sends it; raises ValueError with one line per wrong field."""
    if not isinstance(raw, dict):
        raise ValueError("the input must be one JSON object: the batch spec")
    if (path := find_unstorable(raw)) is not None:
        raise ValueError(f"{path or 'spec'}: must not contain NUL or an unpaired surrogate")
    try:
        return BatchSpec.model_validate(raw)
    except ValidationError as error:
        raise ValueError(explain(error, BatchSpec)) from error


class Resolved(Wire):
    """What the names in a spec meant at registration; part of the contract."""

    script_digest: str | None = None
    parser_id: str | None = None
    desktop_image: str | None = None
    evaluator_revision: str | None = None
    null_desktop: bool = False


def contract_of(spec: BatchSpec, resolved: Resolved) -> dict[str, Any]:
    """The contract of every rollout of the batch, as plain JSON.

    Raises ValueError when the spec demands another agent contract.
    """
    body = spec.model_dump(mode="json", exclude=set(OPERATIONAL))
    contract = {
        "schema_version": 1,
        **body,
        "policy": _policy_of(spec, resolved, body["policy"]),
        "resolved": resolved.model_dump(mode="json", exclude={"script_digest", "parser_id"}),
    }
    _check_agent(spec.policy, contract)
    return contract


def _policy_of(spec: BatchSpec, resolved: Resolved, body: dict[str, Any]) -> dict[str, Any]:
    policy = spec.policy
    if isinstance(policy, ScriptedPolicy | ReplayPolicy):
        # the digest is the meaning; the name under which it was registered is not
        return {"kind": policy.kind, "script_digest": resolved.script_digest}
    if isinstance(policy, OpenAIPolicy):
        agent, sampling = policy.agent(spec.purpose)
        return {
            "kind": policy.kind,
            "model": policy.model,
            **agent,
            "parser_id": resolved.parser_id,
            "sampling": sampling,
            "parity": policy.parity,
        }
    return body


def _check_agent(policy: Policy, contract: dict[str, Any]) -> None:
    wanted = policy.agent_contract_id if isinstance(policy, OpenAIPolicy) else None
    if wanted is not None and wanted != (found := agent_contract_id(contract)):
        raise ValueError(
            f"policy.agent_contract_id: the spec means {found}, not {wanted}; its agent is {agent_contract(contract)}"
        )


def resolved_of(contract: dict[str, Any]) -> Resolved:
    """What the names of a registered spec meant, from its contract."""
    policy = contract["policy"]
    return Resolved(
        script_digest=policy.get("script_digest"), parser_id=policy.get("parser_id"), **contract["resolved"]
    )


def contract_digest(contract: dict[str, Any]) -> str:
    """Digest of a contract: equal meaning, equal digest."""
    return digest(contract)


class RegisterBatch(Wire):
    """Register (or relaunch) a batch: plans every rollout as a row."""

    batch_id: str
    namespace: str
    spec: BatchSpec
    launch_id: str
    """First run id of this launch: control flags of an earlier launch are cleared once per launch."""


class RegisteredBatch(Wire):
    """What registration found or made."""

    batch_id: str
    planned: int
    """Rollouts of the batch, all of them."""
    added: int
    """Rollouts that this call added."""
    final: int
    """Rollouts that need no further attempt."""
    slice_s: float
    """How long one pump call lasts at most, seconds."""
    slices_per_run: int
    """Pump calls before the workflow continues as new."""
    heartbeat_s: float = 30
    """Heartbeat timeout of the pump."""


class Counts(Wire):
    """The roll call of one batch: planned = admitted + masked + running + waiting."""

    planned: int = 0
    waiting: int = 0
    running: int = 0
    admitted: int = 0
    masked: int = 0


class PumpRequest(Wire):
    """Keep a window of episodes running for at most `slice_s` seconds."""

    batch_id: str
    slice_s: float
    thaw: bool = False
    """The first of a launch: what an earlier launch left frozen goes on."""


class PumpResult(Wire):
    """Why the pump returned."""

    state: Literal["whole", "stopped", "continue"]
    counts: Counts


class Control(Wire):
    """A change of a batch's control, written by one idempotent activity."""

    batch_id: str
    verb: Literal["pause", "resume", "stop", "set_concurrency"]
    freeze: bool = False
    """With `pause`: running episodes stand still, their deadlines stop."""
    concurrency: int | None = None
    reason: str = ""
    launch_id: str = ""
    """The launch that was told so; once the batch is launched again, its word counts no more. Empty: any."""


class CloseBatch(Wire):
    """Cancel what still runs and close every open row as cancelled."""

    batch_id: str
    reason: str = ""
    launch_id: str = ""
    """The launch that was cancelled: it closes nothing of a later one, nor of a batch it never became. Empty: any."""


class BatchResult(Wire):
    """Result of BenchmarkBatch."""

    batch_id: str
    state: Literal["complete", "already complete", "stopped", "cancelled"]
    counts: Counts
    next: str
    """The command that shows or resumes the batch."""


class PauseInput(Input):
    """Optional argument of the signal `pause`."""

    freeze: bool = False
    reason: str = ""


class ConcurrencyInput(Input):
    """Argument of the signal `set_concurrency`."""

    concurrency: int = Field(ge=1, le=10_000)


BatchId = Name
