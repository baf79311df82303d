"""Whether two encodings show the same picture."""

import io

from PIL import Image, ImageChops, UnidentifiedImageError

CLOSE = 8
"""Levels of 255 by which versions of a scaling library may differ in a pixel."""


def alike(one: bytes, other: bytes) -> bool:
    """The same size, and no channel of any pixel further apart than `CLOSE`. Blocking: call it in a thread."""
    try:
        with Image.open(io.BytesIO(one)) as left, Image.open(io.BytesIO(other)) as right:
            if left.size != right.size:
                return False
            difference = ImageChops.difference(left.convert("RGB"), right.convert("RGB"))
            return all(max(histogram[CLOSE + 1 :]) == 0 for histogram in _histograms(difference))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return False


def _histograms(difference: Image.Image) -> list[list[int]]:
    """Pixels by level, per channel."""
    counts = difference.histogram()
    return [counts[at : at + 256] for at in range(0, len(counts), 256)]
