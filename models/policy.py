"""The `policy` of a spec: one model per built-in policy kind, and one for the kinds of installed packages."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from models.base import Input, Name
from models.contract import AgentOptions, Overlay, Purpose, Resolved, SamplingOptions, agent_of, difference
from models.history import HistoryPolicy

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(@[0-9a-f]{8,64})?$", max_length=200)]
"""A registered name, or `name@digest` (at least 8 digits) to pin one registration of it."""


class PolicySpec(Input):
    """Base of every policy of a spec."""

    kind: str

    def contract_part(self, purpose: Purpose, resolved: Resolved) -> dict[str, Any]:
        """The `policy` of the contract, as plain JSON: by default the spec itself."""
        return self.model_dump(mode="json")

    @property
    def required_agent(self) -> str | None:
        """The id that the agent contract must have; None accepts any."""
        return None

    @property
    def script_source(self) -> tuple[str, str]:
        """(field, problem) for an error about a task for which its script has no steps."""
        return "policy.kind", "no steps are there"


class ScriptPart(PolicySpec):
    """A policy that plays a script: its digest is the meaning, the name under which it was registered is not."""

    def contract_part(self, purpose: Purpose, resolved: Resolved) -> dict[str, Any]:
        """Kind and digest."""
        return {"kind": self.kind, "script_digest": resolved.script_digest}


class ScriptedPolicy(ScriptPart):
    """Plays recorded steps per task; the model-free policy for demonstrations and conformance tests."""

    kind: Literal["scripted"]
    script: SetName
    """A registered script file, by name or `name@digest`."""

    @property
    def script_source(self) -> tuple[str, str]:
        """The script that was named."""
        return "policy.script", "the script has no steps and no 'default'"


class NoopPolicy(PolicySpec):
    """Waits, then answers DONE: the floor that every honest task must score 0 for."""

    kind: Literal["noop"]
    waits: int = Field(default=0, ge=0, le=10_000)
    """Steps without an action before DONE."""


class ReplayPolicy(ScriptPart):
    """Runs recorded actions again on a fresh desktop: does the rollout still score?"""

    kind: Literal["replay"]
    rollout: str | None = Field(default=None, min_length=1, max_length=500)
    """Key of one recorded rollout; its task is the only one that can be selected."""
    batch: Name | None = None
    """A recorded batch instead: each task plays its first sample that was admitted, and must have one."""
    attempt: int | None = Field(default=None, ge=1)
    """With `rollout`: this attempt instead of the selected one."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.rollout is None) == (self.batch is None):
            raise ValueError("give either 'rollout' or 'batch'")
        if self.attempt is not None and self.rollout is None:
            raise ValueError("'attempt' goes with 'rollout'")
        return self

    @property
    def script_source(self) -> tuple[str, str]:
        """The rollout or batch that was recorded."""
        return "policy.rollout" if self.rollout else "policy.batch", "nothing is recorded"


_REMOVED = {
    "training_mode": "the purpose of a batch is its key 'purpose'",
    "training_turn_strategy": "every model call is exported, see `rollbook export training`",
}
"""Switches of older agents that changed the meaning of an episode without a trace in its contract."""

_KEEP = ("max_trajectory_length", "max_image_history_length")
_HIGH = "max_live_images"
_DEFAULT_KEEP = 3


def without_legacy_keys(raw: dict[str, Any]) -> dict[str, Any]:
    """Translate the keys of older agents to `history`; raises ValueError for removed switches.

    `max_trajectory_length` and `max_image_history_length` say how many images are kept, `max_live_images` how many
    there may be before a cut; without a difference the window is fixed.
    """
    for name in sorted(_REMOVED.keys() & (raw.keys() | _keys(raw.get("options")))):
        raise ValueError(f"'{name}' was removed and is not ignored: {_REMOVED[name]}")
    legacy = {name: raw[name] for name in (*_KEEP, _HIGH) if raw.get(name) is not None}
    rest = {name: value for name, value in raw.items() if name not in (*_KEEP, _HIGH)}
    if not legacy:
        return rest
    if "history" in rest:
        raise ValueError(f"'history' and {', '.join(map(repr, sorted(legacy)))} exclude each other; keep 'history'")
    return rest | {"history": _history(legacy)}


def _keys(value: Any) -> set[str]:
    return set(value) if isinstance(value, dict) else set()


def _history(legacy: dict[str, Any]) -> dict[str, Any]:
    for name, value in legacy.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
            raise ValueError(f"'{name}' must be a whole number of at least 1 (given: {value!r:.80})")
    kept = {int(legacy[name]) for name in _KEEP if name in legacy}
    if len(kept) > 1:
        raise ValueError(f"{' and '.join(map(repr, _KEEP))} contradict each other: {sorted(kept)}")
    keep = kept.pop() if kept else _DEFAULT_KEEP
    high = int(legacy.get(_HIGH, keep))
    if high < keep:
        raise ValueError(f"'{_HIGH}' ({high}) must be at least the number of kept images ({keep})")
    if high == keep:
        return {"name": "fixed", "params": {"keep_images": keep}}
    return {"name": "hysteresis", "params": {"low_water": keep, "high_water": high}}


class OpenAIPolicy(PolicySpec):
    """A model behind an OpenAI-compatible chat completions endpoint."""

    kind: Literal["openai"]
    endpoint: Name
    """Endpoint profile of the workers' own configuration (address, key): outside the contract."""
    model: str = Field(pattern=r"^[^\x00\s](?:[^\x00\n]*[^\x00\s])?$", max_length=300)
    """The model's name as the endpoint knows it."""
    protocol: Name = "pyautogui-code-v1"
    """Form of the prompt and of the reply."""
    history: HistoryPolicy = HistoryPolicy(name="fixed", params={"keep_images": 3})
    options: AgentOptions = AgentOptions()
    sampling: SamplingOptions = SamplingOptions()
    by_purpose: dict[Purpose, Overlay] = {}
    """Differences between training and evaluation."""
    parity: Literal["strict", "declared"] = "strict"
    """`strict`: training and evaluation must be the same agent. `declared`: they may differ, on purpose."""
    agent_contract_id: str | None = Field(default=None, pattern=r"^agent-contract-[0-9a-f]{24}$")
    """Refuse to register unless the agent contract has this id, for instance that of a training batch."""

    @model_validator(mode="before")
    @classmethod
    def _legacy(cls, raw: Any) -> Any:
        return without_legacy_keys(raw) if isinstance(raw, dict) else raw

    @field_validator("by_purpose")
    @classmethod
    def _overlays(cls, value: dict[Purpose, Overlay]) -> dict[Purpose, Overlay]:
        return dict(sorted(value.items()))

    @model_validator(mode="after")
    def _parity(self) -> Self:
        train, eval_ = (self.agent(purpose)[0] for purpose in ("train", "eval"))
        if self.parity == "strict" and (lines := difference(train, eval_)):
            raise ValueError(
                f"training and evaluation are different agents (train -> eval): {'; '.join(lines)}; make them equal, "
                'or say "parity": "declared"'
            )
        return self

    def agent(self, purpose: Purpose) -> tuple[dict[str, Any], dict[str, Any]]:
        """(what makes the agent, its sampling) for a purpose, as plain JSON; raises ValueError for a bad overlay."""
        overlay = self.by_purpose.get(purpose, Overlay())
        try:
            return agent_of(self.protocol, self.history, self.options, self.sampling, overlay)
        except ValidationError as error:  # the parts are valid, so the fault is the overlay's
            wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
            raise ValueError(f"by_purpose.{purpose}: {'; '.join(wrong)}") from None

    def contract_part(self, purpose: Purpose, resolved: Resolved) -> dict[str, Any]:
        """The agent of the purpose; the endpoint that serves the model is not part of it."""
        agent, sampling = self.agent(purpose)
        return {
            "kind": self.kind,
            "model": self.model,
            **agent,
            "parser_id": resolved.parser_id,
            "sampling": sampling,
            "parity": self.parity,
        }

    @property
    def required_agent(self) -> str | None:
        """As the spec demands."""
        return self.agent_contract_id


class PluginPolicy(PolicySpec):
    """A kind that an installed package registers, named `package.kind`.

    These models are pure and cannot look into packages: the worker reads the rest with the kind's own model when the
    batch is registered.
    """

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)+$", max_length=100)]

    def contract_part(self, purpose: Purpose, resolved: Resolved) -> dict[str, Any]:
        """As the package made it; raises ValueError where it was not asked."""
        part = resolved.policy_part
        if part is None:
            raise ValueError(f"policy.kind: {self.kind!r} was not resolved by a worker that has it")
        # the part of another kind: the difference must be seen
        return part if part["kind"] == self.kind else super().contract_part(purpose, resolved)


def _tag(policy: Any) -> str | None:
    if not isinstance(policy, dict | PolicySpec):
        return "noop"  # whichever it is, its model refuses what is not an object
    kind = policy.get("kind") if isinstance(policy, dict) else policy.kind
    # a dot makes it a package's kind: a misspelt built-in kind is refused at once, without asking a worker
    return None if kind is None else "package.kind" if "." in str(kind) else str(kind)


Policy = Annotated[
    Annotated[ScriptedPolicy, Tag("scripted")]
    | Annotated[NoopPolicy, Tag("noop")]
    | Annotated[ReplayPolicy, Tag("replay")]
    | Annotated[OpenAIPolicy, Tag("openai")]
    | Annotated[PluginPolicy, Tag("package.kind")],
    Discriminator(_tag),
]
