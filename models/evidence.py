"""References to evidence: histories and the ledger hold digests, the artifact store holds the bytes."""

from typing import Any

from pydantic import Field

from models.base import Sha256, Wire
from models.identity import digest


class ArtifactRef(Wire):
    """Bytes in the content-addressed artifact store."""

    sha256: Sha256
    size_bytes: int = Field(ge=0)
    media_type: str


def source_part(sha256: str) -> dict[str, Any]:
    """An image in exported evidence; its bytes are the artifact with that digest."""
    return {"type": "image_url", "image_url": f"media://{sha256}", "detail": None}


def media_id(sha256: str) -> str:
    """`media-` and 24 digits of the source part's SHA-256, which a reader of an export can compute again."""
    return f"media-{digest(source_part(sha256))[:24]}"
