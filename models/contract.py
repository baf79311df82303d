"""The agent contract: what makes two agents the same, apart from weights, sampling and purpose.

Source: upstream contract §3.4. Training and evaluation of one policy are comparable only if their agent contracts are
equal; where they differ on purpose, the spec says so (`parity: declared`).
"""

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from models.base import Input, Name
from models.history import HistoryPolicy
from models.identity import short_id

Purpose = Literal["eval", "train"]

WIRE_CONTRACT_ID = "openai-chat-completions-v1"
"""How a request travels: one chat completion, not streamed, images as data URLs of PNG."""


class AgentOptions(Input):
    """Options that change what the model sees or how its replies are read."""

    coordinate_type: Literal["relative", "absolute", "relative_1000", "qwen25"] = "relative"
    """The space of the model's coordinates."""
    thinking: bool | None = None
    """Asks the server's chat template for reasoning, or for none; None leaves its default."""
    max_image_pixels: int | None = Field(default=None, ge=1, le=100_000_000)
    """Screenshots with more pixels are scaled down before they are sent."""
    parse_retries: int = Field(default=5, ge=1, le=100)
    """Samples per step in all, until one can be parsed."""
    parse_error_feedback: bool = False
    """Tell the model what was wrong with its last reply."""
    parse_retry_temperature: float | None = Field(default=None, ge=0, le=2)
    """Temperature of repeated samples; None: that of the sampling, at least 0.2."""
    pre_done_checklist: bool = False
    repeated_action_warning_threshold: int = Field(default=0, ge=0, le=1000)
    repeated_action_window: int = Field(default=12, ge=1, le=1000)


class Sampling(Input):
    """How replies are drawn. Outside the agent contract; part of the batch's contract."""

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
    """Like every number of an input: 20.0 is 20."""
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Overlay(Input):
    """What a purpose changes; what is not named stays."""

    protocol: Name | None = None
    history: HistoryPolicy | None = None
    options: dict[str, Any] = {}
    """Members of AgentOptions."""
    sampling: dict[str, Any] = {}
    """Members of Sampling."""


def agent_of(
    protocol: str, history: HistoryPolicy, options: AgentOptions, sampling: Sampling, overlay: Overlay
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(agent, sampling) with the overlay applied, as plain JSON; raises ValueError that names the member."""
    chosen = overlay.history or history
    agent = {
        "protocol_id": overlay.protocol or protocol,
        "history": chosen.model_dump(mode="json"),
        "history_policy_id": chosen.policy_id,
        "options": AgentOptions.model_validate(options.model_dump() | overlay.options).model_dump(mode="json"),
    }
    drawn = Sampling.model_validate(sampling.model_dump() | overlay.sampling)
    return agent, drawn.model_dump(mode="json")


def agent_contract(contract: dict[str, Any]) -> dict[str, Any]:
    """The agent contract within a batch's contract; no purpose, parity, sampling, model or reward in it."""
    policy, desktop, resolved = contract["policy"], contract["desktop"], contract["resolved"]
    options = policy.get("options") or {}
    return {
        "schema_version": 1,
        "runner": {
            "name": "rollbook",
            "kind": policy["kind"],
            "action_space": "pyautogui",
            "action_runtime": contract["action_runtime"],
            "observation_type": _observation_type(contract["observe"]),
            "platform": "ubuntu",
            "screen_size": [desktop["screen_width"], desktop["screen_height"]],
            "desktop_image": resolved["desktop_image"],
            "egress": desktop["egress"],
            "evaluator_revision": resolved["evaluator_revision"],
        },
        "max_steps": contract["limits"]["max_steps"],
        "limits": contract["limits"],
        "settle": contract["settle"],
        "model_protocol": {
            "protocol_id": policy.get("protocol_id"),
            "parser_id": policy.get("parser_id"),
            "thinking": options.get("thinking"),
            "wire_contract_id": WIRE_CONTRACT_ID if policy["kind"] == "openai" else None,
        },
        "history_policy": policy.get("history"),
        "agent_options": options,
    }


def agent_contract_id(contract: dict[str, Any]) -> str:
    """`agent-contract-` and 24 digits; equal for the same agent, whatever it is used for."""
    return short_id("agent-contract", agent_contract(contract))


def _observation_type(observe: dict[str, bool]) -> str:
    return "+".join(["screenshot", *(name for name in ("accessibility_tree", "terminal") if observe[name])])


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
