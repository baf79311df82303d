"""References to evidence: histories and the ledger hold digests, the artifact store holds the bytes."""

from pydantic import Field

from models.base import Sha256, Wire


class ArtifactRef(Wire):
    """Bytes in the content-addressed artifact store."""

    sha256: Sha256
    size_bytes: int = Field(ge=0)
    media_type: str
