"""Screenshots as a model gets them: scaled explicitly, by the same arithmetic and encoder settings everywhere.

The policy that sends an image and the proof that comes later use the same code. Blocking and CPU-bound: call it in a
thread.
"""

import hashlib
import io
import math

from PIL import Image, ImageChops, UnidentifiedImageError

from models.evidence import media_id
from rollbook.errors import InvalidInput
from rollbook.policies.agent import Screen
from rollbook.policies.protocols.base import MediaRef

Size = tuple[int, int]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png_size(png: bytes) -> Size:
    """Width and height in pixels, from the header alone. Raises InvalidInput for anything but a PNG."""
    if len(png) < 24 or png[:8] != _SIGNATURE or png[12:16] != b"IHDR":
        raise InvalidInput("screenshot: not a PNG image")
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    if not width or not height:
        raise InvalidInput(f"screenshot: a PNG of {width}×{height} pixels")
    return width, height


def fitted(size: Size, max_pixels: int) -> Size:
    """The largest size of about the same shape with at most `max_pixels` (>= 1); never larger than `size`."""
    width, height = size
    if max_pixels < 1:
        raise InvalidInput(f"max_pixels: must be at least 1 (given: {max_pixels})")
    if width * height <= max_pixels:
        return size
    ratio = math.sqrt(max_pixels / (width * height))
    fit_w = min(max(1, math.floor(width * ratio)), max_pixels)
    return fit_w, min(max(1, math.floor(height * ratio)), max_pixels // fit_w)


def scale_png(png: bytes, *, max_pixels: int | None = None, target: Size | None = None) -> tuple[bytes, Size]:
    """The image at `target`, or at most `max_pixels` large, and its size; the very same bytes when nothing changes.

    Equal input gives equal bytes for one version of Pillow. Raises InvalidInput for what is not a PNG, and for both
    limits at once.
    """
    if max_pixels is not None and target is not None:
        raise InvalidInput("image scaling: give max_pixels or a target size, not both")
    size = png_size(png)
    wanted = target or (fitted(size, max_pixels) if max_pixels is not None else size)
    if min(wanted) < 1:
        raise InvalidInput(f"image scaling: the target {wanted[0]}×{wanted[1]} is empty")
    return (png, size) if wanted == size else (_resized(png, wanted), wanted)


def _resized(png: bytes, size: Size) -> bytes:
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            scaled = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidInput(f"screenshot: the PNG cannot be decoded: {error}") from error
    scaled.info = {}  # no colour profile, no time stamp
    out = io.BytesIO()
    scaled.save(out, format="PNG", compress_level=6, optimize=False)
    return out.getvalue()


def seen(png: bytes, max_pixels: int | None) -> tuple[Screen, bytes]:
    """The screen and its bytes as sent. Blocking and CPU-bound: call it in a thread."""
    image, (width, height) = scale_png(png, max_pixels=max_pixels)
    sha256 = hashlib.sha256(image).hexdigest()
    media = MediaRef(media_id(sha256), sha256, width, height)
    return Screen(media, png_size(png)), image


CLOSE = 8
"""Levels of 255 by which versions of a scaling library may differ in a pixel."""


def same_image(one: bytes, other: bytes) -> bool:
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
