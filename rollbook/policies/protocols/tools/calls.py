"""Calls of the `computer` tool in a reply, and their arguments: each is used or refused, none is ignored silently."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.identity import canonical_json
from rollbook.policies.keys import MODIFIERS, known_combination
from rollbook.policies.protocols.base import Size
from rollbook.policies.protocols.coordinates import Projection
from rollbook.policies.protocols.pyautogui.source import BadCode

OFFERED = (
    *("click", "double_click", "triple_click", "right_click", "middle_click", "move", "drag", "scroll"),
    *("type", "keypress", "wait", "screenshot", "terminate"),
)
"""The actions that the prompt names."""

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

    Raises BadCode for a call that is not one of the tool `computer`.
    """
    if tool_calls:
        return [_read(call.get("function") if isinstance(call, Mapping) else None) for call in tool_calls]
    return [_read(_json(body)) for body in _TAGGED.findall(text)]


def without_calls(text: str) -> str:
    """Text without the calls that stand in it."""
    return _TAGGED.sub("", text).strip()


def arguments_of(function: Mapping[str, Any]) -> Any:
    """Arguments of a call: servers give them as JSON text or as an object. Raises BadCode."""
    given = function.get("arguments", {})
    if isinstance(given, str):
        return _json(given)
    try:
        canonical_json(given)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadCode(_NOT_JSON) from error
    return given


_NOT_JSON = "the arguments of the tool call are not JSON"


def _json(text: str) -> Any:
    try:
        value = json.loads(text)
        canonical_json(value)  # refuses NaN and Infinity, which Python's reader takes
    except (ValueError, RecursionError) as error:
        raise BadCode(_NOT_JSON) from error
    return value


def _read(function: Any) -> Call:
    if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
        raise BadCode("a tool call needs a name and arguments")
    arguments = arguments_of(function)
    if not isinstance(arguments, Mapping):
        raise BadCode("the arguments of a tool call must be a JSON object")
    # Some models put the whole call under `action`.
    if isinstance(whole := arguments.get("action"), Mapping):
        arguments = {**{key: value for key, value in arguments.items() if key != "action"}, **whole}
    # OpenAI's tool calls the action `type`
    naming = "type" if name in _TOOLS and "action" not in arguments else "action"
    said = arguments.get(naming, name)
    action = ALIASES.get(said, said) if isinstance(said, str) else ""
    if action not in UNDERSTOOD or (name not in _TOOLS and ALIASES.get(name, name) != action):
        words = name if naming not in arguments else f"{name}, {naming} {said!r}"
        raise BadCode(f"there is no such tool call: {words[:80]}; use computer with one of {', '.join(OFFERED)}")
    return Call(action, {key: value for key, value in arguments.items() if key != naming})


_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_NUMBER_TEXT = re.compile(rf"\s*{_NUMBER}\s*", re.ASCII)
_PAIR_TEXT = re.compile(rf"\s*[\[(]?\s*({_NUMBER})\s*,\s*({_NUMBER})\s*[\])]?\s*", re.ASCII)


class Arguments:
    """The arguments of a call, taken one by one. null means that an argument is not given."""

    def __init__(self, call: Call) -> None:
        self.action = call.action
        self._left = {name: value for name, value in call.arguments.items() if value is not None}

    def take(self, *names: str) -> Any:
        """The argument under the one of its names that is given; None without. Raises BadCode for two of them."""
        given = [name for name in names if name in self._left]
        if len(given) > 1:
            raise self.wrong(f"give {given[0]} or {given[1]}, not both")
        return self._left.pop(given[0]) if given else None

    def done(self) -> None:
        """Raises BadCode when something is left that the action does not know."""
        for name in self._left:
            raise self.wrong(f"there is no argument {name[:40]!r} for it")

    def wrong(self, words: str) -> BadCode:
        """An error that names the action."""
        return BadCode(f"{self.action}: {words}")

    def place(self, projection: Projection, *names: str) -> Size | None:
        """The place under one of these names, or under x and y; None when there is none."""
        pair = self.take(*names)
        x, y = self.take("x"), self.take("y")
        if x is not None or y is not None:
            if pair is not None:
                raise self.wrong(f"give {names[0]} or x and y, not both")
            pair = [x, y]
        return None if pair is None else self.point(names[0], pair, projection)

    def point(self, name: str, pair: Any, projection: Projection) -> Size:
        """A pair of numbers, also as an object or a text, in pixels of the screen."""
        if isinstance(pair, Mapping) and pair.keys() == {"x", "y"}:
            pair = [pair["x"], pair["y"]]
        if isinstance(pair, str) and (read := _PAIR_TEXT.fullmatch(pair)):
            pair = list(read.groups())
        if not isinstance(pair, list) or len(pair) != 2:
            raise self.wrong(f"{name} must be two numbers, [x, y]")
        x, y = (self._number(name, axis, "must be two numbers, [x, y]") for axis in pair)
        return projection.point(x, y)

    def number(self, name: str, value: Any, low: float, high: float, *, whole: bool = False) -> float:
        """A number of a range; a text may hold it."""
        words = f"must be a {'whole ' if whole else ''}number of {low:g}..{high:g}"
        found = self._number(name, value, words)
        if not low <= found <= high or (whole and not found.is_integer()):
            raise self.wrong(f"{name} {words}")
        return found

    def _number(self, name: str, value: Any, words: str) -> float:
        if isinstance(value, str) and _NUMBER_TEXT.fullmatch(value):
            value = float(value)
        # Not isinstance: a bool is an int in Python.
        if type(value) not in (int, float):
            raise self.wrong(f"{name} {words}")
        try:
            return float(value)
        except OverflowError as error:
            raise self.wrong(f"{name} is too large") from error

    def keys(self, *names: str) -> list[str]:
        """Key names: a list, `ctrl+s`, or a list as a text; empty without. Raises BadCode for an unknown one."""
        given = self.take(*names)
        # A list as a text; `[` alone is a key.
        if isinstance(given, str) and given.lstrip().startswith("[") and len(given.strip()) > 1:
            try:
                given = json.loads(given)
            except (ValueError, RecursionError) as error:
                raise self.wrong(f"{names[0]} must be a list of key names") from error
        listed = given if isinstance(given, list) else [] if given is None else [given]
        keys: list[str] = []
        for name in listed:
            if not isinstance(name, str) or not name:
                raise self.wrong(f"{names[0]} must be a list of key names")
            combination = known_combination(name)
            if combination is None:
                raise self.wrong(f"there is no key named {name[:40]!r}")
            keys += combination
        return keys

    def modifiers(self) -> list[str]:
        """Keys to be held while the mouse acts; `text` is Anthropic's name for them."""
        keys = self.keys("keys", "text", "key", "modifiers")
        if other := [key for key in keys if key not in MODIFIERS]:
            raise self.wrong(f"only ctrl, shift, alt and win can be held meanwhile, not {other[0]!r}")
        return keys
