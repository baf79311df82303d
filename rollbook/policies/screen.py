"""What is sent of a screenshot: the same for the policy that sends it and for the proof that comes later."""

import hashlib

from rollbook.evidence.media import media_id
from rollbook.policies.agent import Screen
from rollbook.policies.imaging import png_size, scale_png
from rollbook.policies.protocols.base import MediaRef


def seen(png: bytes, max_pixels: int | None) -> tuple[Screen, bytes]:
    """The screen and its bytes as sent. Blocking and CPU-bound: call it in a thread."""
    image, (width, height) = scale_png(png, max_pixels=max_pixels)
    media = MediaRef(media_id(image), hashlib.sha256(image).hexdigest(), width, height)
    return Screen(media, png_size(png)), image
