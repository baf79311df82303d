"""The batch spec: the one JSON object that people submit, and the contract that follows from it."""

from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from models.base import Input
from models.contract import ActionRuntime, Contract, DesktopSpec, EpisodeLimits, Observe, Purpose, Resolved, Settle
from models.explain import explain
from models.outcome import OnDesktopBroken, RewardMode
from models.policy import Policy, SetName
from models.provenance import Provenance
from models.sanitize import find_unstorable
from models.task import TaskFilter


class BatchSpec(Input):
    """The one JSON object that BenchmarkBatch takes. Everything but `task_set` and `policy` has a default."""

    policy: Policy
    limits: EpisodeLimits = EpisodeLimits()
    settle: Settle = Settle()
    desktop: DesktopSpec = DesktopSpec()
    observe: Observe = Observe()
    action_runtime: ActionRuntime = "canonical"
    reward_mode: RewardMode = "binary"
    on_desktop_broken: OnDesktopBroken = "mask"
    """An attempt whose guest was broken after the agent acted: not counted; reward 0 in training; or tried again."""
    seed: int = Field(default=0, ge=0, lt=2**53)
    purpose: Purpose = "eval"
    """Purpose of the rollouts. `rollout_purpose` is accepted as another name of the key."""

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
    identity: Provenance | None = None
    """The sampler's own ids of the rollouts; without them the ids are derived, and never trained on."""
    note: str = Field(default="", max_length=500)
    """Free text, shown with the batch."""

    @model_validator(mode="before")
    @classmethod
    def _one_purpose(cls, raw: Any) -> Any:
        """Read `rollout_purpose`, upstream's name of the key; both must agree where both are given."""
        if not isinstance(raw, dict) or "rollout_purpose" not in raw:
            return raw
        rest = {name: value for name, value in raw.items() if name != "rollout_purpose"}
        if rest.setdefault("purpose", raw["rollout_purpose"]) != raw["rollout_purpose"]:
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


def contract_of(spec: BatchSpec, resolved: Resolved) -> Contract:
    """The contract of every rollout of the batch. Raises ValueError when the spec demands another agent contract."""
    body = spec.model_dump(mode="json", exclude=set(OPERATIONAL))
    contract = Contract.read(
        {
            "schema_version": 1,
            **body,
            "policy": spec.policy.contract_part(spec.purpose, resolved),
            "resolved": resolved.model_dump(mode="json", exclude={"script_digest", "parser_id"}),
        }
    )
    demanded = spec.policy.required_agent
    if demanded not in (None, contract.agent_contract_id):
        raise ValueError(
            f"policy.agent_contract_id: the spec means {contract.agent_contract_id}, not {demanded}; "
            f"its agent is {contract.agent_contract}"
        )
    return contract
