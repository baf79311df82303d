"""Screenshots as a model gets them: scaled explicitly, by the same arithmetic and encoder settings everywhere.

Blocking and CPU-bound: call it in a thread.
"""

import io
import math

from PIL import Image, UnidentifiedImageError

from rollbook.errors import InvalidInput

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
