"""Calls of the `computer` tool, one by one, as pyautogui code."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.identity import canonical_json
from models.outcome import TerminalAction
from rollbook.policies.base import WAIT
from rollbook.policies.keys import chord, known_combination
from rollbook.policies.protocols.base import Size
from rollbook.policies.protocols.coordinates import OutOfSpace, Projection
from rollbook.policies.protocols.source import Unusable

MAX_TEXT = 20_000
"""Characters that one call may type."""

MAX_SCROLL = 1000
DRAG_S = 0.5
"""Duration of a drag: many applications ignore a pointer that jumps."""

ALIASES = {
    **dict.fromkeys(("left_click",), "click"),
    **dict.fromkeys(("mouse_move", "move_to"), "move"),
    **dict.fromkeys(("left_click_drag", "drag_to"), "drag"),
    **dict.fromkeys(("key", "hotkey", "press"), "keypress"),
    **dict.fromkeys(("write",), "type"),
}
"""Other names of the same actions in computer-use tools."""

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A tool call, read."""

    action: str
    arguments: Mapping[str, Any]

    @property
    def words(self) -> str:
        """The call in one line, in the model's own units."""
        rest = {key: value for key, value in self.arguments.items() if key != "action"}
        return f"{self.action} {canonical_json(rest)}" if rest else self.action


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
    action = arguments.get("action", name)
    action = ALIASES.get(action, action) if isinstance(action, str) else ""
    if action not in ACTIONS or (name not in ("computer", "computer_use") and ALIASES.get(name, name) != action):
        said = name if "action" not in arguments else f"{name}, action {arguments['action']!r}"
        raise Unusable(f"there is no such tool call: {said[:80]}; use computer with one of {', '.join(ACTIONS)}")
    return Call(action, arguments)


@dataclass(frozen=True)
class Meant:
    """What one call comes to."""

    actions: list[str]
    terminal_action: TerminalAction | None = None


def meaning(call: Call, projection: Projection) -> Meant:
    """A call as code. Raises Unusable."""
    try:
        return ACTIONS[call.action](call, projection)
    except OutOfSpace as error:
        raise Unusable(f"{call.action}: {error}") from error


def _clicking(function: str) -> Callable[[Call, Projection], Meant]:
    def click(call: Call, projection: Projection) -> Meant:
        place = _place(call, projection)
        arguments = [str(axis) for axis in place or ()]
        button = call.arguments.get("button", "left")
        if button not in ("left", "middle", "right"):
            raise Unusable(f"{call.action}: button must be left, middle or right")
        if function in ("click", "doubleClick", "tripleClick") and button != "left":
            arguments.append(f"button={button!r}")
        return Meant([f"pyautogui.{function}({', '.join(arguments)})"])

    return click


def _move(call: Call, projection: Projection) -> Meant:
    x, y = _place(call, projection) or _missing(call, "coordinate")
    return Meant([f"pyautogui.moveTo({x}, {y})"])


def _drag(call: Call, projection: Projection) -> Meant:
    if (path := call.arguments.get("path")) is not None:
        if not isinstance(path, list) or len(path) < 2:
            raise Unusable("drag: path must be a list of at least two points")
        points = [_point(call, "path", point, projection) for point in path]
    else:
        end = _place(call, projection) or _missing(call, "coordinate")
        start = call.arguments.get("start_coordinate")
        points = [*([] if start is None else [_point(call, "start_coordinate", start, projection)]), end]
    code = [] if len(points) == 1 else [f"pyautogui.moveTo({points[0][0]}, {points[0][1]})"]
    code.append("pyautogui.mouseDown()")
    stops = points[-1:] if len(points) == 1 else points[1:]
    code += [f"pyautogui.moveTo({x}, {y}, duration={DRAG_S})" for x, y in stops]
    return Meant(["\n".join([*code, "pyautogui.mouseUp()"])])


def _scroll(call: Call, projection: Projection) -> Meant:
    direction = call.arguments.get("direction")
    if direction not in ("up", "down", "left", "right"):
        raise Unusable("scroll: direction must be up, down, left or right")
    amount = call.arguments.get("amount", 5)
    if isinstance(amount, float) and amount.is_integer():
        amount = int(amount)
    if type(amount) is not int or not 1 <= amount <= MAX_SCROLL:
        raise Unusable(f"scroll: amount must be a whole number of 1..{MAX_SCROLL} notches")
    function = "scroll" if direction in ("up", "down") else "hscroll"
    notches = amount if direction in ("up", "right") else -amount
    arguments = [notches, *(_place(call, projection) or ())]
    return Meant([f"pyautogui.{function}({', '.join(map(str, arguments))})"])


def _type(call: Call, _: Projection) -> Meant:
    text = call.arguments.get("text")
    if not isinstance(text, str) or not text:
        raise Unusable("type: text must be a text that is not empty")
    if len(text) > MAX_TEXT:
        raise Unusable(f"type: text must have at most {MAX_TEXT} characters")
    text = text.replace("\r\n", "\n")  # pyautogui presses Enter for both characters
    return Meant([f"pyautogui.typewrite({text!r})"])


def _keypress(call: Call, _: Projection) -> Meant:
    given = call.arguments.get("keys", call.arguments.get("text", call.arguments.get("key")))
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise Unusable("keypress: keys must be a list of key names that is not empty")
    keys: list[str] = []
    for name in names:
        combination = known_combination(name)
        if combination is None:
            raise Unusable(f"keypress: there is no key named {name[:40]!r}")
        keys += combination
    function = "press" if len(keys) == 1 else "hotkey"
    return Meant([f"pyautogui.{function}({', '.join(map(repr, chord(keys)))})"])


def _terminate(call: Call, _: Projection) -> Meant:
    status = call.arguments.get("status")
    if status not in ("success", "failure"):
        raise Unusable("terminate: status must be success or failure")
    return Meant([], "DONE" if status == "success" else "FAIL")


ACTIONS: dict[str, Callable[[Call, Projection], Meant]] = {
    "click": _clicking("click"),
    "double_click": _clicking("doubleClick"),
    "triple_click": _clicking("tripleClick"),
    "right_click": _clicking("rightClick"),
    "middle_click": _clicking("middleClick"),
    "move": _move,
    "drag": _drag,
    "scroll": _scroll,
    "type": _type,
    "keypress": _keypress,
    "wait": lambda _call, _projection: Meant([WAIT]),
    "screenshot": lambda _call, _projection: Meant([]),
    "terminate": _terminate,
}
"""The tool's actions. `screenshot` does nothing: every step ends with one."""


def _place(call: Call, projection: Projection) -> Size | None:
    """The call's place in pixels; None when it names none."""
    arguments = call.arguments
    if (pair := arguments.get("coordinate")) is None and ("x" in arguments or "y" in arguments):
        pair = [arguments.get("x"), arguments.get("y")]
    return None if pair is None else _point(call, "coordinate", pair, projection)


def _point(call: Call, name: str, pair: Any, projection: Projection) -> Size:
    if isinstance(pair, Mapping):
        pair = [pair.get("x"), pair.get("y")]
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(axis) in (int, float) for axis in pair):
        raise Unusable(f"{call.action}: {name} must be two numbers, [x, y]")
    try:
        return projection.point(float(pair[0]), float(pair[1]))
    except OverflowError as error:
        raise Unusable(f"{call.action}: {name} is too large") from error


def _missing(call: Call, name: str) -> Size:
    raise Unusable(f"{call.action}: {name} is required")
