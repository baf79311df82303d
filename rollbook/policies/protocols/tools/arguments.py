"""Arguments of one tool call. Each is used or refused: what nobody took is not left out without a word."""

import json
import re
from collections.abc import Mapping
from typing import Any

from rollbook.policies.keys import MODIFIERS, known_combination
from rollbook.policies.protocols.base import Size
from rollbook.policies.protocols.coordinates import Projection
from rollbook.policies.protocols.pyautogui.source import Unusable
from rollbook.policies.protocols.tools.calls import Call

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_NUMBER_TEXT = re.compile(rf"\s*{_NUMBER}\s*", re.ASCII)
_PAIR_TEXT = re.compile(rf"\s*[\[(]?\s*({_NUMBER})\s*,\s*({_NUMBER})\s*[\])]?\s*", re.ASCII)


class Arguments:
    """The arguments of a call, taken one by one. null means that an argument is not given."""

    def __init__(self, call: Call) -> None:
        self.action = call.action
        self._left = {name: value for name, value in call.arguments.items() if value is not None}

    def take(self, *names: str) -> Any:
        """The argument under the one of its names that is given; None without. Raises Unusable for two of them."""
        given = [name for name in names if name in self._left]
        if len(given) > 1:
            raise self.wrong(f"give {given[0]} or {given[1]}, not both")
        return self._left.pop(given[0]) if given else None

    def done(self) -> None:
        """Raises Unusable when something is left that the action does not know."""
        for name in self._left:
            raise self.wrong(f"there is no argument {name[:40]!r} for it")

    def wrong(self, words: str) -> Unusable:
        """An error that names the action."""
        return Unusable(f"{self.action}: {words}")

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
        if type(value) not in (int, float):
            raise self.wrong(f"{name} {words}")
        try:
            return float(value)
        except OverflowError as error:
            raise self.wrong(f"{name} is too large") from error

    def keys(self, *names: str) -> list[str]:
        """Key names: a list, `ctrl+s`, or a list as a text; empty without. Raises Unusable for an unknown one."""
        given = self.take(*names)
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
