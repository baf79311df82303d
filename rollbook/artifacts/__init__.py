"""Content-addressed artifact store: bytes by SHA-256, written once, never changed."""

from rollbook.artifacts.store import ArtifactState, ArtifactStore

__all__ = ["ArtifactState", "ArtifactStore"]
