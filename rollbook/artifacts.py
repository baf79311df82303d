"""The artifact store over `obstore`: a local directory or an S3 bucket, put-if-absent.

Layout: `<root>/<first two hex digits>/<sha256>`. The name is the digest, so a repeated put is harmless and a reader
can always prove what it got. Media types are in the ledger (`artifact`), not in the store.
"""

import hashlib
import re
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlparse

import obstore
from obstore.exceptions import AlreadyExistsError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from models.evidence import ArtifactRef
from rollbook.errors import ArtifactError, ConfigError
from rollbook.redaction import redact_bytes

ArtifactState = Literal["ok", "missing", "corrupt"]

_DIGEST = re.compile(r"^[0-9a-f]{64}\Z")
_TEXT = re.compile(r"text/|application/(json|x-ndjson|xml)\b")


def object_path(sha256: str) -> str:
    """Path of an artifact below the store's root; raises ArtifactError for anything but a digest."""
    if not _DIGEST.match(sha256):
        raise ArtifactError(f"not a SHA-256 digest: {sha256[:80]!r}")
    return f"{sha256[:2]}/{sha256}"


class ArtifactStore:
    """Put and get bytes by digest. Safe for concurrent writers of the same bytes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def open(cls, url: str) -> "ArtifactStore":
        """Open `file:///directory` (created when absent) or `s3://bucket/prefix` (credentials from the environment)."""
        parsed = urlparse(url)
        if parsed.scheme == "file":
            root = Path(unquote(parsed.path))
            root.mkdir(parents=True, exist_ok=True)
            return cls(LocalStore(root))
        if parsed.scheme in {"s3", "gs", "az"}:
            return cls(from_url(url))
        raise ConfigError(f"ROLLBOOK_ARTIFACT_URL: {url!r} is neither file:///directory nor s3://bucket/prefix")

    async def put(self, data: bytes, media_type: str) -> ArtifactRef:
        """Store bytes unless they are there already; returns their reference. Text is stored without secrets.

        What is there with another size was cut off (a crash of the machine, a full disk) and is written again.
        """
        if _TEXT.match(media_type):
            data = redact_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        path = object_path(sha256)
        try:
            await obstore.put_async(self._store, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            if await self._size(path) != len(data):
                # The new file replaces the old one as a whole: readers never see a part of it.
                await obstore.put_async(self._store, path, data, mode="overwrite", use_multipart=False)
        return ArtifactRef(sha256=sha256, size_bytes=len(data), media_type=media_type)

    async def get(self, sha256: str) -> bytes:
        """The bytes of an artifact; raises ArtifactError when they are missing or do not match the digest."""
        data = await self._read(sha256)
        if data is None:
            raise ArtifactError(f"artifact {sha256} is missing from the store")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ArtifactError(f"artifact {sha256} is corrupt: its bytes have another digest")
        return data

    async def verify(self, sha256: str) -> ArtifactState:
        """Read an artifact and compare its digest."""
        data = await self._read(sha256)
        if data is None:
            return "missing"
        return "ok" if hashlib.sha256(data).hexdigest() == sha256 else "corrupt"

    async def _read(self, sha256: str) -> bytes | None:
        path = object_path(sha256)
        if not self._readable(path):
            return None
        try:
            result = await obstore.get_async(self._store, path)
            return bytes(await result.bytes_async())
        except (FileNotFoundError, NotFoundError):
            return None

    async def _size(self, path: str) -> int | None:
        if not self._readable(path):
            return None
        try:
            return (await obstore.head_async(self._store, path))["size"]
        except (FileNotFoundError, NotFoundError):
            return None

    def _readable(self, path: str) -> bool:
        """False for anything but a regular file in a local store: opening a FIFO would wait for a writer, for ever."""
        if isinstance(self._store, LocalStore) and self._store.prefix is not None:
            return (Path(self._store.prefix) / path).is_file()
        return True
