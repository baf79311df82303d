"""The contract: everything that gives one rollout of a batch its meaning.

A contract is registered once, as canonical JSON, and never changes; its digest says whether two batches mean the same.
`Contract` reads it for the code that plays, checks and exports rollouts. The agent contract is the part that makes two
agents the same, apart from weights, sampling and purpose: training and evaluation of one policy are comparable only if
their agent contracts are equal; where they differ on purpose, the spec says so (`parity: declared`).
"""

import re
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from models.base import Input, Name, Wire
from models.explain import explain
from models.history import HistoryPolicy
from models.identity import digest, short_id
from models.outcome import OnDesktopBroken, RewardMode

Purpose = Literal["eval", "train"]
ActionRuntime = Literal["canonical", "exact-input-2"]

WIRE_CONTRACT_ID = "openai-chat-completions-v1"
"""Form of a request: one chat completion, not streamed, images as data URLs of PNG."""


class EpisodeLimits(Input):
    """The runner's limits; times in seconds."""

    max_steps: int = Field(default=15, ge=1, le=1000)
    deadline_s: float = Field(default=1800, gt=0, le=86_400)
    """From the start of setup until the step loop must end; evaluation follows. Does not run while frozen."""
    model_timeout_s: float = Field(default=900, gt=0, le=7200)
    action_timeout_s: float = Field(default=120, gt=0, le=600)
    """Per action. The guest itself kills an action after 120 s."""
    setup_timeout_s: float = Field(default=2400, gt=0, le=7200)
    evaluate_timeout_s: float = Field(default=1200, gt=0, le=7200)


class Settle(Input):
    """Pauses in which nothing is done on the desktop, in seconds. They change what is observed."""

    after_setup_s: float = Field(default=2.0, ge=0, le=300)
    after_action_s: float = Field(default=2.0, ge=0, le=300)
    """After each action, before the next one or the observation (OSWorld's `sleep_after_execution`)."""
    before_evaluation_s: float = Field(default=2.0, ge=0, le=300)


class DesktopLimits(Input):
    """Limits of one desktop on its host: what a task may use before it slows down or is killed."""

    cpus: float = Field(default=2.0, gt=0, le=256)
    """Cores; a host with fewer gives what it has."""
    memory_mib: int = Field(default=3072, ge=128, le=1_048_576)
    """Memory, swap included."""
    pids: int = Field(default=2048, ge=64, le=4_194_304)
    """Processes and threads."""
    shm_mib: int = Field(default=512, ge=16, le=1_048_576)
    """Size of /dev/shm (Chromium needs more than Docker's default)."""


class DesktopSpec(Input):
    """The desktop on which the rollouts run."""

    provider: str = Field(default="docker", min_length=1, max_length=64)
    """Name of a registered sandbox provider; `null` is the do-nothing desktop of benchmarks and rehearsals."""
    variant: Literal["slim"] = "slim"
    image: str | None = None
    """A full image reference instead of the built variant; None takes the worker's build of `variant`."""
    screen_width: int = Field(default=1920, ge=320, le=7680)
    screen_height: int = Field(default=1080, ge=240, le=4320)
    egress: Literal["auto", "none", "open"] = "auto"
    limits: DesktopLimits = DesktopLimits()

    @property
    def screen(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.screen_width, self.screen_height


class Observe(Input):
    """Parts of an observation besides the screenshot."""

    accessibility_tree: bool = False
    terminal: bool = False

    @property
    def type(self) -> str:
        """The names of the parts, for instance `screenshot+terminal`."""
        return "+".join(["screenshot", *(name for name in ("accessibility_tree", "terminal") if getattr(self, name))])


class AgentOptions(Input):
    """Options that change the prompt or the reading of replies."""

    coordinate_type: Literal["relative", "absolute", "relative_1000", "qwen25"] = "relative"
    """The space of the model's coordinates."""
    thinking: bool | None = None
    """Ask the server's chat template for reasoning, or for none; None leaves its default."""
    max_image_pixels: int | None = Field(default=None, ge=1, le=100_000_000)
    """Screenshots with more pixels are scaled down before they are sent."""
    parse_retries: int = Field(default=5, ge=1, le=100)
    """Most samples per step; the first that can be parsed decides."""
    parse_error_feedback: bool = False
    """Add the error of the last reply to the next prompt."""
    parse_retry_temperature: float | None = Field(default=None, ge=0, le=2)
    """Temperature of repeated samples; None: that of the sampling, at least 0.2."""
    pre_done_checklist: bool = False
    repeated_action_warning_threshold: int = Field(default=0, ge=0, le=1000)
    repeated_action_window: int = Field(default=12, ge=1, le=1000)


class SamplingOptions(Input):
    """Parameters of sampling. Outside the agent contract; part of the batch's contract."""

    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_output_tokens: int = Field(default=1500, ge=1, le=1_000_000)
    seed: int | None = Field(default=None, ge=0, lt=2**53)
    """Each call gets a seed of its own, derived from this, the rollout, attempt, step and parse attempt."""
    stop: list[str] = []
    extra: dict[str, Any] = {}
    """Further members of the request, for instance `{"top_k": 20}`."""

    @field_validator("extra", mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        return _whole_numbers(given)


def _whole_numbers(value: Any) -> Any:
    """Read 20.0 as 20, as in every other number of an input."""
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Overlay(Input):
    """Changes for one purpose; fields that are not given keep their value."""

    protocol: Name | None = None
    history: HistoryPolicy | None = None
    options: dict[str, Any] = {}
    """Members of AgentOptions."""
    sampling: dict[str, Any] = {}
    """Members of SamplingOptions."""


def agent_of(
    protocol: str, history: HistoryPolicy, options: AgentOptions, sampling: SamplingOptions, overlay: Overlay
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(agent, sampling) with the overlay applied, as plain JSON; raises ValueError that names the member."""
    chosen = overlay.history or history
    agent = {
        "protocol_id": overlay.protocol or protocol,
        "history": chosen.model_dump(mode="json"),
        "history_policy_id": chosen.policy_id,
        "options": AgentOptions.model_validate(options.model_dump() | overlay.options).model_dump(mode="json"),
    }
    drawn = SamplingOptions.model_validate(sampling.model_dump() | overlay.sampling)
    return agent, drawn.model_dump(mode="json")


class Resolved(Wire):
    """Values of the names in a spec, resolved at registration; part of the contract."""

    script_digest: str | None = None
    parser_id: str | None = None
    policy_part: dict[str, Any] | None = Field(default=None, exclude=True)
    """The whole `policy` of the contract, where only the package that registers its kind can make it."""
    desktop_image: str | None = None
    """The image as the spec or the worker's settings name it, for people."""
    desktop_digest: str | None = None
    """Digest of that image at registration: desktops are started by it."""
    evaluator_revision: str | None = None
    null_desktop: bool = False


class Stored(Wire):
    """A part of a registered contract, with the JSON that it was read from."""

    document: dict[str, Any] = Field(repr=False, exclude=True)
    """As stored. Digests and exports are made of this: a default that was added since must not change them."""

    @model_validator(mode="before")
    @classmethod
    def _keep_document(cls, stored: Any) -> Any:
        return {**stored, "document": stored} if isinstance(stored, dict) else stored

    @classmethod
    def read(cls, document: Any) -> Self:
        """Read the stored JSON; raises ValueError with one `field: problem` per wrong field.

        Looser than a spec: keys that a newer version added are ignored, and numbers may have been rewritten by a tool.
        """
        try:
            return cls.model_validate(document, strict=False, extra="ignore")
        except ValidationError as error:
            raise ValueError(explain(error)) from error


class PolicyContract(Stored):
    """The policy of a contract: the fields that the kinds have; None where a kind has no such field."""

    kind: str
    model: str | None = None
    """The model's name as its endpoint knows it."""
    protocol_id: str | None = None
    parser_id: str | None = None
    history: dict[str, Any] | None = None
    history_policy_id: str | None = None
    options: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    parity: str | None = None
    script_digest: str | None = None
    """Of the steps that a scripted or replayed rollout plays."""
    waits: int = 0

    @property
    def name(self) -> str:
        """The model's name, otherwise the kind: for people and for derived ids."""
        return self.model or self.kind


class RecordedContract(Stored):
    """The part that the contract of every batch has, also of one whose results were imported."""

    policy: PolicyContract
    purpose: Purpose
    reward_mode: RewardMode
    on_desktop_broken: OnDesktopBroken = "mask"
    resolved: Resolved

    @property
    def all_resolved(self) -> Resolved:
        """`resolved`, and the names that are stored with the policy."""
        policy = self.policy
        names = {"script_digest": policy.script_digest, "parser_id": policy.parser_id, "policy_part": policy.document}
        return self.resolved.model_copy(update=names)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal meaning, equal digest."""
        return digest(self.document)


class Contract(RecordedContract):
    """The contract of a batch whose rollouts run here."""

    limits: EpisodeLimits
    settle: Settle
    desktop: DesktopSpec
    observe: Observe
    action_runtime: ActionRuntime
    seed: int = 0

    @cached_property
    def agent_contract(self) -> dict[str, Any]:
        """The agent contract, as plain JSON; no purpose, parity, sampling, model or reward in it."""
        policy, desktop = self.policy, self.desktop
        options = policy.options or {}
        return {
            "schema_version": 1,
            "runner": {
                "name": "rollbook",
                "kind": policy.kind,
                "action_space": "pyautogui",
                "action_runtime": self.action_runtime,
                "observation_type": self.observe.type,
                "platform": "ubuntu",
                "screen_size": list(desktop.screen),
                "desktop_image": self.resolved.desktop_image,
                "egress": desktop.egress,
                "desktop_limits": desktop.limits.model_dump(),
                "evaluator_revision": self.resolved.evaluator_revision,
            },
            "max_steps": self.limits.max_steps,
            "limits": self.document["limits"],
            "settle": self.document["settle"],
            "model_protocol": {
                "protocol_id": policy.protocol_id,
                "parser_id": policy.parser_id,
                "thinking": options.get("thinking"),
                "wire_contract_id": None if policy.protocol_id is None else WIRE_CONTRACT_ID,
            },
            "history_policy": policy.history,
            "agent_options": options,
        }

    @cached_property
    def agent_contract_id(self) -> str:
        """`agent-contract-` and 24 digits; equal for the same agent, whatever it is used for."""
        return short_id("agent-contract", self.agent_contract)


def difference(old: Any, new: Any, path: str = "") -> list[str]:
    """Readable difference of two JSON values, one `path: old -> new` per leaf."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines: list[str] = []
        for key in sorted(old.keys() | new.keys()):
            lines += difference(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return lines
    if old == new:
        return []
    before, now = _brief(old), _brief(new)
    return [f"{path}: {before} -> {now}" if before != now else f"{path}: {old!r} -> {new!r}"]


def _brief(value: Any) -> str:
    """A value as people read it: of a digest, the beginning."""
    return repr(re.sub(r"^((?:sha256:)?[0-9a-f]{12})[0-9a-f]{52}$", r"\1", value) if isinstance(value, str) else value)
