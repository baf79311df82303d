"""The media arena: every image once, under an id that its source part has (upstream contract §2.1, §3.2)."""

import hashlib
from base64 import b64encode
from typing import Any

from models.identity import canonical_json


def source_part(png: bytes) -> dict[str, Any]:
    """The part of a message that carried the image."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(png).decode()}"}}


def media_id(png: bytes) -> str:
    """`media-` and 24 digits of the source part's SHA-256."""
    return f"media-{hashlib.sha256(canonical_json(source_part(png)).encode()).hexdigest()[:24]}"
