"""The agent of a contract: which request follows from what was recorded.

Pure: policy and verifier come to the same bytes from the same rows. Everything that a request depends on is in the
contract, the task, the screen, or the committed calls of the attempt; nothing is remembered elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from models.contract import AgentOptions, Contract
from models.history import HistoryPlan, HistoryPolicy, replay_plan, smaller_budget
from models.identity import digest
from rollbook.errors import ConfigError, LedgerConflict
from rollbook.ledger.records import CallRecord
from rollbook.policies.client import Sampling
from rollbook.policies.protocols.base import MediaRef, ModelProtocol, PastTurn, PromptInputs, ProtocolOptions, Size
from rollbook.policies.protocols.registry import protocol

ANSWERED = 200
OVERFLOW = "context_overflow"
TRANSPORT = "transport_error"
TIMEOUT = "model_timeout"

RETRY_TEMPERATURE = 0.2
"""Repeated samples are drawn at this temperature at least."""


@dataclass(frozen=True)
class Screen:
    """The current observation: what is sent of it, and the size of the screen it shows."""

    media: MediaRef
    size: Size

    @property
    def sent(self) -> Size:
        """Size as sent."""
        return self.media.width, self.media.height

    def to_json(self) -> dict[str, Any]:
        """As it is kept with the call."""
        return {
            "media_id": self.media.media_id,
            "sha256": self.media.sha256,
            "sent": list(self.sent),
            "screen": list(self.size),
        }

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        """Back from the call's telemetry."""
        width, height = kept["sent"]
        screen_width, screen_height = kept["screen"]
        return cls(MediaRef(kept["media_id"], kept["sha256"], width, height), (screen_width, screen_height))


@dataclass(frozen=True)
class AgentTask:
    """The agent's task: the part of an attempt that prompts and seeds depend on."""

    rollout_key: str
    attempt_index: int
    instruction: str


@dataclass(frozen=True)
class PlannedCall:
    """One call, ready to be made."""

    number: int
    """1, 2, …: `parse_attempt` of its row."""
    plan: HistoryPlan
    max_images: int | None
    """Clamp after context overflows of this step."""
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    sampling: Sampling
    last_sample: bool
    """A reply that cannot be parsed now ends the episode."""
    smaller: int | None
    """The clamp to try next should this context overflow; None when it cannot shrink."""


@dataclass(frozen=True)
class Tries:
    """The calls that one step has seen so far."""

    calls: tuple[CallRecord, ...]

    @property
    def counted(self) -> list[CallRecord]:
        """Those that use up the step's tries: what did not fit, or found no working server, was never sampled."""
        return [call for call in self.calls if call.failure_kind != OVERFLOW and not found_no_server(call)]

    @property
    def samples(self) -> list[CallRecord]:
        """Those that returned a reply."""
        return [call for call in self.calls if call.completed]

    @property
    def max_images(self) -> int | None:
        """The clamp that the last overflow left."""
        shrunk = [call for call in self.calls if call.failure_kind == OVERFLOW]
        return (shrunk[-1].telemetry or {}).get("next_max_images") if shrunk else None


def found_no_server(call: CallRecord) -> bool:
    """Report if the call failed before a model could answer; an answer that cannot be read was sampled."""
    return call.failure_kind == TRANSPORT and (call.telemetry or {}).get("status") != ANSWERED


class Agent:
    """Model, protocol, history policy and options of one contract."""

    def __init__(self, contract: Contract) -> None:
        """Raises ConfigError when this worker's protocols or history policies are not those of the contract."""
        policy = contract.policy
        self.model = policy.model or ""
        self.options = AgentOptions.model_validate(policy.options)
        self.history = HistoryPolicy.model_validate(policy.history)
        self.max_steps = contract.limits.max_steps
        self._sampling = policy.sampling or {}
        self.protocol = _protocol(policy.protocol_id or "", self.options)
        observed = (self.protocol.protocol_id, self.protocol.parser_id, self.history.policy_id)
        resolved = (policy.protocol_id, policy.parser_id, policy.history_policy_id)
        if observed != resolved:
            raise ConfigError(f"this worker's agent is {observed}, the contract's {resolved}: update the worker")

    def next_call(self, task: AgentTask, step: int, screen: Screen, calls: Sequence[CallRecord]) -> PlannedCall:
        """The call that follows the committed ones; `calls` are all of the attempt up to this step."""
        earlier = [call for call in calls if call.step < step and call.decides]
        # A prompt with a gap would show the model a past that it did not have.
        if [call.step for call in earlier] != list(range(1, step)):
            raise LedgerConflict(f"the steps before step {step} of {task.rollout_key} are not all decided")
        tries = Tries(tuple(call for call in calls if call.step == step))
        # Clamps of earlier steps are replayed: what they folded must stay text in every later prompt.
        clamps = {call.step - 1: clamp for call in earlier if (clamp := (call.telemetry or {}).get("max_images"))}
        plan = replay_plan(self.history, step - 1, tries.max_images, clamps)
        inputs = PromptInputs(
            instruction=task.instruction,
            turns=[_past(call) for call in earlier],
            current=screen.media,
            plan=plan,
            step=step,
            max_steps=self.max_steps,
            feedback=self._feedback(tries),
            screen=screen.size,
            sent=screen.sent,
        )
        # Overflows are numbered too: each call has a row of its own.
        number = len(tries.calls) + 1
        return PlannedCall(
            number=number,
            plan=plan,
            max_images=tries.max_images,
            messages=self.protocol.render(inputs),
            tools=self.protocol.tools(),
            sampling=self._drawn(task, step, number, repeated=bool(tries.samples)),
            last_sample=len(tries.counted) + 1 >= self.options.parse_retries,
            smaller=smaller_budget(self.history, plan),
        )

    def exhausted(self, calls: Sequence[CallRecord], step: int) -> bool:
        """True when the step has no try left."""
        return len(Tries(tuple(call for call in calls if call.step == step)).counted) >= self.options.parse_retries

    def _feedback(self, tries: Tries) -> str | None:
        if not self.options.parse_error_feedback or not tries.samples:
            return None
        # Of the last reply only: the ones before it are not in the prompt.
        return tries.samples[-1].parse_error

    def _drawn(self, task: AgentTask, step: int, number: int, *, repeated: bool) -> Sampling:
        given = self._sampling
        temperature = float(given["temperature"])
        if repeated:
            wanted = self.options.parse_retry_temperature
            # At 0 the same prompt would give the same reply that could not be parsed.
            temperature = max(RETRY_TEMPERATURE, temperature) if wanted is None else wanted
        seed = given["seed"]
        if seed is not None:  # the same for every delivery of this call, another one for every other call
            drawn = digest([seed, task.rollout_key, task.attempt_index, step, number])
            # 31 bits fit the integer of every server.
            seed = int(drawn[:8], 16) & 0x7FFFFFFF
        return Sampling(
            temperature=temperature,
            top_p=given["top_p"],
            max_output_tokens=given["max_output_tokens"],
            seed=seed,
            stop=tuple(given["stop"]),
            extra={**self.protocol.extra_body(), **given["extra"]},
        )


def _protocol(protocol_id: str, options: AgentOptions) -> ModelProtocol:
    wanted = {name: value for name, value in options.model_dump().items() if name in ProtocolOptions.model_fields}
    return protocol(protocol_id, ProtocolOptions.model_validate(wanted))


def _past(call: CallRecord) -> PastTurn:
    telemetry, said = call.telemetry or {}, call.said or {}
    return PastTurn(
        step=call.step,
        image=Screen.from_json(telemetry["image"]).media,
        text=said.get("kept_text"),
        response=said.get("content") or "",
        tool_calls=said.get("tool_calls") or (),
    )
