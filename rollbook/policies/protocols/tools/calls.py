"""Calls of the `computer` tool in a reply, read one by one."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.identity import canonical_json
from rollbook.policies.protocols.pyautogui.source import Unusable

OFFERED = (
    *("click", "double_click", "triple_click", "right_click", "middle_click", "move", "drag", "scroll"),
    *("type", "keypress", "wait", "screenshot", "terminate"),
)
"""The actions that the prompt tells the model of."""

UNDERSTOOD = (*OFFERED, "mouse_down", "mouse_up", "hold_key")
"""With those that models know from other tools."""

ALIASES = {
    **dict.fromkeys(("left_click",), "click"),
    **dict.fromkeys(("mouse_move", "move_to", "hover"), "move"),
    **dict.fromkeys(("left_click_drag", "drag_to"), "drag"),
    **dict.fromkeys(("key", "hotkey", "press"), "keypress"),
    **dict.fromkeys(("write",), "type"),
    **dict.fromkeys(("left_mouse_down",), "mouse_down"),
    **dict.fromkeys(("left_mouse_up",), "mouse_up"),
}
"""Other names of the same actions in computer-use tools."""

_TOOLS = ("computer", "computer_use")

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A tool call, read."""

    action: str
    """One of UNDERSTOOD."""
    arguments: Mapping[str, Any]
    """As the model gave them, without the action."""

    @property
    def words(self) -> str:
        """The call in one line, in the model's own units."""
        return f"{self.action} {canonical_json(self.arguments)}" if self.arguments else self.action


def read_calls(tool_calls: Sequence[Mapping[str, Any]], text: str) -> list[Call]:
    """The calls of a reply: its tool calls, or else those that stand in its text as `<tool_call>{…}</tool_call>`.

    Raises Unusable for a call that is not one of the tool `computer`.
    """
    if tool_calls:
        return [_read(call.get("function") if isinstance(call, Mapping) else None) for call in tool_calls]
    return [_read(_json(body)) for body in _TAGGED.findall(text)]


def without_calls(text: str) -> str:
    """Text without the calls that stand in it."""
    return _TAGGED.sub("", text).strip()


def arguments_of(function: Mapping[str, Any]) -> Any:
    """Arguments of a call: servers give them as JSON text or as an object. Raises Unusable."""
    given = function.get("arguments", {})
    if isinstance(given, str):
        return _json(given)
    try:
        canonical_json(given)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unusable(_NOT_JSON) from error
    return given


_NOT_JSON = "the arguments of the tool call are not JSON"


def _json(text: str) -> Any:
    try:
        value = json.loads(text)
        canonical_json(value)  # refuses NaN and Infinity, which Python's reader takes
    except (ValueError, RecursionError) as error:
        raise Unusable(_NOT_JSON) from error
    return value


def _read(function: Any) -> Call:
    if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
        raise Unusable("a tool call needs a name and arguments")
    arguments = arguments_of(function)
    if not isinstance(arguments, Mapping):
        raise Unusable("the arguments of a tool call must be a JSON object")
    if isinstance(whole := arguments.get("action"), Mapping):
        arguments = {**{key: value for key, value in arguments.items() if key != "action"}, **whole}
    # OpenAI's tool calls the action `type`
    naming = "type" if name in _TOOLS and "action" not in arguments else "action"
    said = arguments.get(naming, name)
    action = ALIASES.get(said, said) if isinstance(said, str) else ""
    if action not in UNDERSTOOD or (name not in _TOOLS and ALIASES.get(name, name) != action):
        words = name if naming not in arguments else f"{name}, {naming} {said!r}"
        raise Unusable(f"there is no such tool call: {words[:80]}; use computer with one of {', '.join(OFFERED)}")
    return Call(action, {key: value for key, value in arguments.items() if key != naming})
