"""References to evidence: histories and the ledger hold digests, the artifact store holds the bytes."""

import hashlib
from base64 import b64encode
from typing import Any

from pydantic import Field

from models.base import Sha256, Wire
from models.identity import canonical_json


class ArtifactRef(Wire):
    """Bytes in the content-addressed artifact store."""

    sha256: Sha256
    size_bytes: int = Field(ge=0)
    media_type: str


def source_part(png: bytes) -> dict[str, Any]:
    """The part of a message that carried the image."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(png).decode()}"}}


def media_id(png: bytes) -> str:
    """`media-` and 24 digits of the source part's SHA-256."""
    return f"media-{hashlib.sha256(canonical_json(source_part(png)).encode()).hexdigest()[:24]}"
