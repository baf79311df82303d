"""What decides the actions, as people write it: one model per policy kind."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from models.base import Input, Name
from models.contract import AgentOptions, Overlay, Purpose, SamplingOptions, agent_of, difference
from models.history import HistoryPolicy
from models.legacy import normalised

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(@[0-9a-f]{8,64})?$", max_length=200)]
"""A registered name, or `name@digest` (at least 8 digits) to pin one registration of it."""


class ScriptedPolicy(Input):
    """Plays recorded steps per task; the model-free policy for demonstrations and conformance tests."""

    kind: Literal["scripted"]
    script: SetName
    """A registered script file, by name or `name@digest`."""


class NoopPolicy(Input):
    """Waits, then answers DONE: the floor that every honest task must score 0 for."""

    kind: Literal["noop"]
    waits: int = Field(default=0, ge=0, le=10_000)
    """Steps without an action before DONE."""


class ReplayPolicy(Input):
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


class OpenAIPolicy(Input):
    """A model behind an OpenAI-compatible chat completions endpoint."""

    kind: Literal["openai"]
    endpoint: Name
    """Endpoint profile of the workers' own configuration (address, key): outside the contract."""
    model: str = Field(pattern=r"^[^\x00\s](?:[^\x00\n]*[^\x00\s])?$", max_length=300)
    """The model's name as the endpoint knows it."""
    protocol: Name = "pyautogui-code-v1"
    """How the prompt is written and the reply read."""
    history: HistoryPolicy = HistoryPolicy(name="fixed", params={"keep_images": 3})
    options: AgentOptions = AgentOptions()
    sampling: SamplingOptions = SamplingOptions()
    by_purpose: dict[Purpose, Overlay] = {}
    """What differs when training or when evaluating."""
    parity: Literal["strict", "declared"] = "strict"
    """`strict`: training and evaluation must be the same agent. `declared`: they may differ, on purpose."""
    agent_contract_id: str | None = Field(default=None, pattern=r"^agent-contract-[0-9a-f]{24}$")
    """Refuse to register unless the agent contract has this id, for instance that of a training batch."""

    @model_validator(mode="before")
    @classmethod
    def _legacy(cls, given: Any) -> Any:
        return normalised(given) if isinstance(given, dict) else given

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


Policy = Annotated[ScriptedPolicy | NoopPolicy | ReplayPolicy | OpenAIPolicy, Field(discriminator="kind")]
