"""From the space of a model's coordinates to pixels of the screen."""

import math
from dataclasses import dataclass

from rollbook.policies.protocols.base import CoordinateType, Size

LIMIT = 1_000_000
"""No coordinate is larger, in any space."""


class OutOfSpace(ValueError):
    """A coordinate that the space does not have; the message is fit for the model."""


@dataclass(frozen=True)
class Projection:
    """Projection of coordinates to pixels of the screen."""

    kind: CoordinateType
    screen: Size
    sent: Size

    @property
    def identity(self) -> bool:
        """The model already speaks in pixels of the screen."""
        return self.kind == "absolute" and self.screen == self.sent

    @property
    def space(self) -> Size:
        """The far corner, in the model's units."""
        if self.kind == "relative":
            return (1, 1)
        if self.kind == "relative_1000":
            return (1000, 1000)
        return qwen_size(self.sent) if self.kind == "qwen25" else self.sent

    def axis(self, value: float, axis: int) -> int:
        """A coordinate (axis 0 is x, 1 is y) in pixels, on the screen. Raises OutOfSpace.

        In pixel spaces what lies beyond the edge means the edge, as pyautogui has it. In relative spaces it is a
        mistake of unit, and clicking a corner for it would hide that.
        """
        if not math.isfinite(value) or abs(value) > LIMIT:
            raise OutOfSpace(f"the coordinate {value!r} is not a place on the screen")
        far = self.space[axis]
        if self.kind in ("relative", "relative_1000") and not 0 <= value <= far:
            raise OutOfSpace(f"the coordinate {value!r} is outside 0..{far}")
        pixels = self.screen[axis]
        # The far corner of a space is one past the last pixel.
        return min(max(round(value * pixels / far), 0), pixels - 1)

    def point(self, x: float, y: float) -> Size:
        """A point in pixels of the screen. Raises OutOfSpace."""
        return self.axis(x, 0), self.axis(y, 1)

    def words(self) -> str:
        """The space, explained to the model."""
        if self.kind == "relative":
            return "fractions of the screenshot, from 0.0 (left, top) to 1.0 (right, bottom)"
        if self.kind == "relative_1000":
            return "numbers from 0 (left, top) to 1000 (right, bottom)"
        width, height = self.space
        return f"pixels of a screenshot that is {width} wide and {height} high, counted from its top left corner"


def qwen_size(size: Size) -> Size:
    """The size to which Qwen2.5-VL's image processor brings an image: sides are multiples of 28 pixels and the area
    lies between 3,136 and 12,845,056 pixels (the defaults of its configuration)."""
    width, height = size
    unit, least, most = 28, 3136, 12_845_056
    wide, high = (max(unit, round(side / unit) * unit) for side in size)
    if wide * high > most:
        shrink = math.sqrt(width * height / most)
        wide, high = (max(unit, math.floor(side / shrink / unit) * unit) for side in size)
    elif wide * high < least:
        grow = math.sqrt(least / (width * height))
        wide, high = (math.ceil(side * grow / unit) * unit for side in size)
    return wide, high
