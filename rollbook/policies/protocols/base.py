"""The seam between a policy and how a model is spoken to: facts to messages, a reply to actions.

Everything here is pure: the same inputs give the same bytes on every machine, so that each prompt of a recorded
rollout can be rendered again and compared hash by hash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import Field

from models.base import Input
from models.history import HistoryPlan
from models.outcome import TerminalAction
from models.sanitize import clean_text

Size = tuple[int, int]
"""Width and height in pixels."""

CoordinateType = Literal["relative", "absolute", "relative_1000", "qwen25"]
"""The space of the model's coordinates: 0..1, pixels of the image as sent, 0..1000, or pixels of the image as
Qwen2.5-VL's processor resizes it."""

FailureKind = Literal["output_truncated", "empty_response", "unparseable"]

STOP_REASONS: dict[FailureKind, str] = {
    "output_truncated": "model_output_truncated",
    "empty_response": "model_response_empty",
    "unparseable": "model_response_unparseable",
}
"""Stop reason of the rollout when the last attempt of a step failed in this way."""


class ProtocolOptions(Input):
    """Agent options that change the prompt or its reading and are part of the agent contract."""

    coordinate_type: CoordinateType = "relative"
    thinking: bool | None = None
    """True or False asks the server's chat template for it (`enable_thinking`); None leaves the server's default."""
    pre_done_checklist: bool = False
    """Remind the model, with the current observation, of what to check before it declares success."""
    repeated_action_warning_threshold: int = Field(default=0, ge=0, le=1000)
    """Warn when the last actions were the same this many times; 0 never warns."""
    repeated_action_window: int = Field(default=12, ge=1, le=1000)
    """Number of past turns that the warning looks at."""


@dataclass(frozen=True)
class MediaRef:
    """An image of the media arena, as sent."""

    media_id: str
    sha256: str
    width: int
    height: int


@dataclass(frozen=True)
class PastTurn:
    """A completed turn: what was seen, and the reply that was accepted for it."""

    step: int
    image: MediaRef
    text: str | None
    """`Parsed.kept_text` of the accepted reply; None makes the protocol read it out of `response` again."""
    response: str
    """Content of the accepted reply, raw; empty when it had none."""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """Tool calls of the accepted reply, raw."""


@dataclass(frozen=True)
class PromptInputs:
    """All that a prompt is made of."""

    instruction: str
    turns: Sequence[PastTurn]
    """Every completed turn, the first one first."""
    current: MediaRef
    plan: HistoryPlan
    step: int
    """From 1."""
    max_steps: int
    feedback: str | None
    """Problem of the last reply to this observation; None on a first try, or without feedback."""
    screen: Size
    sent: Size
    """Size of every image as sent."""


@dataclass(frozen=True)
class ReplyView:
    """The parts of a model's reply that a parser looks at."""

    content: str | None
    reasoning: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    finish_reason: str | None = None


@dataclass(frozen=True)
class Parsed:
    """A reply, read. A reply that cannot be read is a result, never an exception."""

    actions: list[str] = field(default_factory=list)
    """pyautogui code (checked, in pixels of the screen) or WAIT, in order; may be empty."""
    terminal_action: TerminalAction | None = None
    """Comes after the actions."""
    error: str | None = None
    """In words, fit to be sent back to the model."""
    failure_kind: FailureKind | None = None
    thought: str = ""
    action_text: str = ""

    def __post_init__(self) -> None:
        for name in ("error", "thought", "action_text"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, clean_text(text))

    @property
    def stop_reason(self) -> str | None:
        """The policy stop reason, should this have been the last attempt."""
        return STOP_REASONS[self.failure_kind] if self.failure_kind else None

    @property
    def kept_text(self) -> str:
        """Thought and Action as later prompts show them; the code is never part of it."""
        return kept_text(self.thought, self.action_text)


def kept_text(thought: str, action: str) -> str:
    """The text of a turn in later prompts."""
    parts = [("Thought", thought.strip()), ("Action", action.strip())]
    return "\n\n".join(f"## {title}:\n{text}" for title, text in parts if text) or "## Action:\n(none)"


def failed(error: str, *, truncated: bool, empty: bool, thought: str = "", action: str = "") -> Parsed:
    """A reply that cannot be used. Being cut off explains more than being empty, and that more than its form."""
    if truncated:
        error = f"the reply was cut off at the token limit ({error})"
        return Parsed([], None, error, "output_truncated", thought, action)
    if empty:
        return Parsed([], None, "the reply was empty", "empty_response", thought, action)
    return Parsed([], None, error, "unparseable", thought, action)


def thinking_switch(options: ProtocolOptions) -> dict[str, Any]:
    """Body members that switch thinking on or off in chat templates that know `enable_thinking`."""
    if options.thinking is None:
        return {}
    return {"chat_template_kwargs": {"enable_thinking": options.thinking}}


class ModelProtocol(Protocol):
    """One way to speak with a model. Its ids are part of the agent contract: another prompt or reading is a new id."""

    @property
    def protocol_id(self) -> str: ...

    @property
    def parser_id(self) -> str: ...

    @property
    def options(self) -> ProtocolOptions: ...

    def tools(self) -> list[dict[str, Any]] | None:
        """The `tools` of the request; None for a protocol without tools."""
        ...

    def extra_body(self) -> dict[str, Any]:
        """Further members of the request body, for instance the chat template's arguments."""
        ...

    def render(self, inputs: PromptInputs) -> list[dict[str, Any]]:
        """Chat messages; every image is `{"type": "image_url", "image_url": {"url": "media://<sha256>"}}`.

        Raises ValueError when plan, turns and step contradict each other.
        """
        ...

    def parse(self, reply: ReplyView, screen: Size, sent: Size) -> Parsed:
        """Read a reply; never raises, whatever the reply holds."""
        ...
