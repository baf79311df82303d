"""Translation of calls of the `computer` tool: pyautogui code, WAIT, or the end of the task."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.outcome import TerminalAction
from rollbook.policies.base import WAIT
from rollbook.policies.keys import chord
from rollbook.policies.protocols.base import Size
from rollbook.policies.protocols.coordinates import OutOfSpace, Projection
from rollbook.policies.protocols.pyautogui.source import BadCode
from rollbook.policies.protocols.tools.calls import Arguments, Call

MAX_TEXT = 20_000
"""Characters that one call may type."""

MAX_SCROLL = 1000
"""Notches."""

NOTCH_PIXELS = 100
"""Pixels that a notch of the wheel stands for, where a model scrolls by pixels."""

MAX_WAIT_S = 300
WAIT_PIECE_S = 10
"""Longer waits are several actions, so that none outlasts the contract's action timeout."""

MAX_HOLD_S = 10
MAX_REPEAT = 100
DRAG_S = 0.5
"""Duration of a drag: many applications ignore a pointer that jumps."""


@dataclass(frozen=True)
class Meant:
    """One call, as actions."""

    actions: list[str]
    terminal_action: TerminalAction | None = None


def meaning(call: Call, projection: Projection) -> Meant:
    """A call as code. Raises BadCode, also for an argument that the action does not know."""
    arguments = Arguments(call)
    try:
        meant = ACTIONS[call.action](arguments, projection)
    except OutOfSpace as error:
        raise BadCode(f"{call.action}: {error}") from error
    arguments.done()
    return meant


def _clicking(function: str, *buttons: str) -> Callable[[Arguments, Projection], Meant]:
    """A click or half of one; the first button is pyautogui's own choice, any other is named to it."""

    def click(given: Arguments, projection: Projection) -> Meant:
        keys, button = given.modifiers(), _button(given, *buttons)
        arguments = [str(axis) for axis in given.place(projection, "coordinate") or ()]
        if button != buttons[0]:
            arguments.append(f"button={button!r}")
        return Meant([_holding(keys, [f"pyautogui.{function}({', '.join(arguments)})"])])

    return click


def _button(given: Arguments, *buttons: str) -> str:
    named = given.take("button")
    button = "middle" if named == "wheel" else buttons[0] if named is None else named
    if button not in buttons:
        raise given.wrong(f"button must be {' or '.join(buttons)}")
    return str(button)


def _holding(keys: list[str], lines: list[str]) -> str:
    """Code that runs while these keys are down."""
    down = [f"pyautogui.keyDown({key!r})" for key in keys]
    up = [f"pyautogui.keyUp({key!r})" for key in reversed(keys)]
    return "\n".join([*down, *lines, *up])


def _move(given: Arguments, projection: Projection) -> Meant:
    x, y = _required(given, given.place(projection, "coordinate"))
    return Meant([f"pyautogui.moveTo({x}, {y})"])


def _drag(given: Arguments, projection: Projection) -> Meant:
    keys, path = given.modifiers(), given.take("path")
    _button(given, "left")
    if path is not None:
        if not isinstance(path, list) or len(path) < 2:
            raise given.wrong("path must be a list of at least two points")
        points = [given.point("path", point, projection) for point in path]
    else:
        end = _required(given, given.place(projection, "coordinate", "end_coordinate"))
        start = given.take("start_coordinate")
        points = [*([] if start is None else [given.point("start_coordinate", start, projection)]), end]
    code = [] if len(points) == 1 else [f"pyautogui.moveTo({points[0][0]}, {points[0][1]})"]
    code.append("pyautogui.mouseDown()")
    stops = points[-1:] if len(points) == 1 else points[1:]
    code += [f"pyautogui.moveTo({x}, {y}, duration={DRAG_S})" for x, y in stops]
    return Meant([_holding(keys, [*code, "pyautogui.mouseUp()"])])


def _scroll(given: Arguments, projection: Projection) -> Meant:
    keys = given.modifiers()
    at = given.place(projection, "coordinate") or ()
    lines = [f"pyautogui.{function}({', '.join(map(str, (notches, *at)))})" for function, notches in _notches(given)]
    return Meant([_holding(keys, lines)])


def _notches(given: Arguments) -> list[tuple[str, int]]:
    """pyautogui's function and its notches; up and right are positive."""
    direction, amount = given.take("direction", "scroll_direction"), given.take("amount", "scroll_amount")
    pixels, across, down = given.take("pixels"), given.take("scroll_x"), given.take("scroll_y")
    ways = [direction is not None or amount is not None, pixels is not None, across is not None or down is not None]
    if sum(ways) > 1:
        raise given.wrong("say it in one way: direction and amount, or pixels, or scroll_x and scroll_y")
    if pixels is not None:
        moves = [("scroll", _by_pixels(given, "pixels", pixels))]
    elif ways[2]:
        moves = [("scroll", -_by_pixels(given, "scroll_y", down)), ("hscroll", _by_pixels(given, "scroll_x", across))]
    else:
        if direction not in ("up", "down", "left", "right"):
            raise given.wrong("direction must be up, down, left or right")
        notches = int(given.number("amount", 5 if amount is None else amount, 1, MAX_SCROLL, whole=True))
        function = "scroll" if direction in ("up", "down") else "hscroll"
        moves = [(function, notches if direction in ("up", "right") else -notches)]
    moves = [(function, notches) for function, notches in moves if notches]
    if not moves:
        raise given.wrong("the amount must not be 0")
    return moves


def _by_pixels(given: Arguments, name: str, value: Any) -> int:
    """Notches for pixels: at least one, unless there are none."""
    most = MAX_SCROLL * NOTCH_PIXELS
    pixels = 0.0 if value is None else given.number(name, value, -most, most)
    notches = max(1, round(abs(pixels) / NOTCH_PIXELS)) if pixels else 0
    return notches if pixels > 0 else -notches


def _type(given: Arguments, _: Projection) -> Meant:
    text = given.take("text")
    if not isinstance(text, str) or not text:
        raise given.wrong("text must be a text that is not empty")
    if len(text) > MAX_TEXT:
        raise given.wrong(f"text must have at most {MAX_TEXT} characters")
    text = text.replace("\r\n", "\n")  # pyautogui presses Enter for both characters
    return Meant([f"pyautogui.typewrite({text!r})"])


def _keypress(given: Arguments, _: Projection) -> Meant:
    keys = _pressed(given)
    function = "press" if len(keys) == 1 else "hotkey"
    repeat = given.take("repeat")
    times = 1 if repeat is None else int(given.number("repeat", repeat, 1, MAX_REPEAT, whole=True))
    return Meant(["\n".join([f"pyautogui.{function}({', '.join(map(repr, keys))})"] * times)])


def _hold_key(given: Arguments, _: Projection) -> Meant:
    keys, duration = _pressed(given), given.take("duration")
    if duration is None:
        raise given.wrong("duration is required")
    seconds = given.number("duration", duration, 0.1, MAX_HOLD_S)
    return Meant([_holding(keys, [f"time.sleep({seconds:g})"])])


def _pressed(given: Arguments) -> list[str]:
    keys = given.keys("keys", "text", "key")
    if not keys:
        raise given.wrong("keys must be a list of key names that is not empty")
    return chord(keys)


def _wait(given: Arguments, _: Projection) -> Meant:
    duration = given.take("duration", "time", "seconds")
    if duration is None:
        return Meant([WAIT])
    left = given.number("the duration in seconds", duration, 0.1, MAX_WAIT_S)
    pieces = [WAIT_PIECE_S] * int(left // WAIT_PIECE_S)
    rest = round(left % WAIT_PIECE_S, 3)
    return Meant([f"time.sleep({seconds:g})" for seconds in [*pieces, *([rest] if rest else [])]])


def _terminate(given: Arguments, _: Projection) -> Meant:
    said = given.take("status")
    status = said.strip().lower() if isinstance(said, str) else ""
    if status not in ("success", "failure"):
        raise given.wrong("status must be success or failure")
    return Meant([], "DONE" if status == "success" else "FAIL")


_ANY = ("left", "middle", "right")

ACTIONS: dict[str, Callable[[Arguments, Projection], Meant]] = {
    "click": _clicking("click", *_ANY),
    "double_click": _clicking("doubleClick", *_ANY),
    "triple_click": _clicking("tripleClick", *_ANY),
    "right_click": _clicking("rightClick", "right"),
    "middle_click": _clicking("middleClick", "middle"),
    "move": _move,
    "drag": _drag,
    "scroll": _scroll,
    "type": _type,
    "keypress": _keypress,
    "wait": _wait,
    "screenshot": lambda _given, _projection: Meant([]),
    "terminate": _terminate,
    "mouse_down": _clicking("mouseDown", *_ANY),
    "mouse_up": _clicking("mouseUp", *_ANY),
    "hold_key": _hold_key,
}
"""The actions of `UNDERSTOOD`. `screenshot` does nothing: every step ends with one."""


def _required(given: Arguments, place: Size | None) -> Size:
    if place is None:
        raise given.wrong("coordinate is required")
    return place
