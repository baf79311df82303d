"""Protocol of models that call one tool, `computer`, in the style of computer-use models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.identity import canonical_json
from rollbook.policies.protocols.base import (
    Parsed,
    PastTurn,
    PromptInputs,
    ProtocolOptions,
    ReplyView,
    Size,
    failed,
    thinking_switch,
)
from rollbook.policies.protocols.conversation import Message, conversation, guidance_of
from rollbook.policies.protocols.coordinates import Projection
from rollbook.policies.protocols.pyautogui.source import BadCode
from rollbook.policies.protocols.sections import split_thinking
from rollbook.policies.protocols.tools.actions import meaning
from rollbook.policies.protocols.tools.calls import OFFERED, read_calls, without_calls

_SYSTEM = """You operate a Linux desktop to fulfil a task. At every step you see a screenshot and choose what to do.

First say in a sentence or two what you see and what should happen. Then call the tool computer.

- Coordinates are {space}.
- Several calls in one reply are carried out in their order; you see the screen again after the last one.
- The screen changes only through your calls. Do no more than you can foresee from the screenshot.
- When the task is fulfilled, call terminate with status success; when it cannot be fulfilled, with status failure."""

_FORM = "Reply again with a call of the tool computer."

_DONE = "carried out"


@dataclass(frozen=True)
class ToolProtocol:
    """`computer-tool-v1`; see docs/reference/protocols.md."""

    protocol_id: str
    parser_id: str
    options: ProtocolOptions

    def tools(self) -> list[dict[str, Any]] | None:
        """The one tool."""
        return [_tool(self.options)]

    def extra_body(self) -> dict[str, Any]:
        """The chat template's switch for thinking, where the contract sets it."""
        return thinking_switch(self.options)

    def render(self, inputs: PromptInputs) -> list[Message]:
        """See ModelProtocol.render. Past calls are repeated as they were made, under ids of our own."""

        def actions_of(turn: PastTurn) -> list[str]:
            return self.parse(ReplyView(turn.response, None, turn.tool_calls), inputs.screen, inputs.sent).actions

        projection = Projection(self.options.coordinate_type, inputs.screen, inputs.sent)
        return conversation(
            inputs,
            _SYSTEM.format(space=projection.words()),
            step_words=lambda step: f"You are currently on Step {step} of at most {inputs.max_steps}.",
            folded_text=_text_of,
            answer=_answer,
            guidance=guidance_of(inputs, self.options, actions_of, _FORM),
        )

    def parse(self, reply: ReplyView, screen: Size, sent: Size) -> Parsed:
        """See ModelProtocol.parse: all calls of a reply, up to the first `terminate`, or none of them."""
        thinking, text = split_thinking(reply.content or "")
        thought = without_calls(text) or thinking or (reply.reasoning or "").strip()
        truncated = reply.finish_reason == "length"
        projection = Projection(self.options.coordinate_type, screen, sent)
        parsed = Parsed(thought=thought)
        try:
            # A server may close the JSON of a call that was cut off: it would look complete.
            if truncated:
                raise BadCode("the calls may not be complete")
            calls = read_calls(reply.tool_calls, text)
            if not calls:
                raise BadCode("there is no call of the tool computer")
            words = "\n".join(call.words for call in calls)
            # For the failure below, which then still shows what was asked for.
            parsed = Parsed(thought=thought, action_text=words)
            meant = [meaning(call, projection) for call in calls]
        except BadCode as error:
            empty = not text.strip() and not reply.tool_calls
            return failed(str(error), truncated=truncated, empty=empty, thought=thought, action=parsed.action_text)
        actions: list[str] = []
        for one in meant:
            actions += one.actions
            if one.terminal_action:
                return Parsed(actions, one.terminal_action, thought=thought, action_text=words)
        return Parsed(actions, thought=thought, action_text=words)


def _tool(options: ProtocolOptions) -> dict[str, Any]:
    number = {"type": "number"} if options.coordinate_type == "relative" else {"type": "integer"}
    point = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
    texts = {
        "action": "What to do.",
        "coordinate": "Where, as [x, y]. For drag: where it ends. Without it, where the pointer is.",
        "start_coordinate": "For drag: where it begins. Without it, where the pointer is.",
        "button": "For click, double_click and triple_click.",
        "direction": "For scroll.",
        "amount": "For scroll: notches of the wheel, 5 without it.",
        "text": "For type: the text. A line break presses Enter.",
        "keys": 'For keypress: names of the keys to press together, for instance ["ctrl", "s"].',
        "status": "For terminate.",
    }
    shapes: dict[str, dict[str, Any]] = {
        "action": {"type": "string", "enum": list(OFFERED)},
        "coordinate": point,
        "start_coordinate": point,
        "button": {"type": "string", "enum": ["left", "middle", "right"]},
        "direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
        "amount": {"type": "integer", "minimum": 1},
        "text": {"type": "string"},
        "keys": {"type": "array", "items": {"type": "string"}},
        "status": {"type": "string", "enum": ["success", "failure"]},
    }
    return {
        "type": "function",
        "function": {
            "name": "computer",
            "description": "Use the mouse and the keyboard of the desktop, wait, or end the task.",
            "parameters": {
                "type": "object",
                "properties": {name: {**shape, "description": texts[name]} for name, shape in shapes.items()},
                "required": ["action"],
            },
        },
    }


def _answer(turn: PastTurn) -> list[Message]:
    """Messages after a past image turn: the reply, and for each of its calls that it was carried out."""
    if not turn.tool_calls:
        return [{"role": "assistant", "content": split_thinking(turn.response)[1].strip()}]
    # nine letters and digits: the strictest chat templates accept nothing else
    calls = [(f"s{turn.step:05d}{position:03d}", call) for position, call in enumerate(turn.tool_calls)]
    said = split_thinking(turn.response)[1].strip()
    message = {"role": "assistant", "content": said, "tool_calls": [_repeated(name, call) for name, call in calls]}
    return [message, *({"role": "tool", "tool_call_id": name, "content": _DONE} for name, _ in calls)]


def _repeated(name: str, call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    given = function.get("arguments", {})
    arguments = given if isinstance(given, str) else canonical_json(given)
    return {"id": name, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _text_of(turn: PastTurn) -> str:
    """Thought and calls of a past turn, in words."""
    if turn.text is not None:
        return turn.text
    thinking, text = split_thinking(turn.response)
    calls = "\n".join(call.words for call in read_calls(turn.tool_calls, text))
    return Parsed(thought=without_calls(text) or thinking, action_text=calls).kept_text
