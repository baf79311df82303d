"""Whether a reply of the guest's server has the form that its route always has.

Canonical code logs an unreadable answer of these routes and goes on with None, which most metrics score as 0 (upstream
`PythonController`, `SetupController`). A half-written or foreign answer must therefore be seen here.
"""

import json
import zlib
from collections.abc import Mapping

SERVER_PORT = 5000
"""Guest port of OSWorld's server."""

BODY_LIMIT = 4 * 2**20
"""Bytes of a JSON answer that are parsed; of a longer one only the two ends are looked at."""

JSON_ROUTES: Mapping[str, str | None] = {
    "/accessibility": "AT",
    "/desktop_path": "desktop_path",
    "/execute": "output",
    "/list_directory": "directory_tree",
    "/run_bash_script": None,
    "/run_python": None,
    "/screen_size": "width",
    "/setup/execute": "output",
    "/setup/execute_with_verification": None,
    "/terminal": "output",
    "/window_size": "width",
}
"""Routes that answer 200 with a JSON object, and the key that canonical code reads from it."""

_TAIL = 64
_PACKED = ("gzip", "x-gzip", "deflate")


class ReplyCheck:
    """Looks at one reply while its bytes pass by."""

    def __init__(self, port: int, path: str, status: int, encoding: str) -> None:
        self._status = status if port == SERVER_PORT else 0
        self._json = self._status == 200 and path in JSON_ROUTES
        self._key = JSON_ROUTES.get(path)
        self._encoding = encoding.strip().lower()
        self._body, self._tail = bytearray(), b""
        self._whole = True

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the body."""
        if not self._json:
            return
        self._tail = (self._tail + chunk)[-_TAIL:]
        room = BODY_LIMIT - len(self._body)
        self._whole &= len(chunk) <= room
        self._body += chunk[:room]

    def problem(self) -> str:
        """What is wrong with the reply, now that it has ended; empty: nothing that can be told."""
        if 200 < self._status < 300:
            return f"status {self._status} from a server whose successes are all 200"
        if not self._json:
            return ""
        try:
            return self._problem_of_json()
        except (ValueError, RecursionError, zlib.error) as error:
            return f"no JSON: {type(error).__name__}: {error}"

    def _problem_of_json(self) -> str:
        body, whole = bytes(self._body), self._whole
        if self._encoding in _PACKED and whole:
            body, whole = _unpacked(body)
        elif self._encoding in _PACKED:
            return ""
        elif self._encoding not in ("", "identity"):
            return f"content encoding {self._encoding!r}, which nobody asked for"
        if not whole:
            ends = body.lstrip()[:1] + (self._tail.rstrip()[-1:] if self._encoding not in _PACKED else b"}")
            return "" if ends == b"{}" else "no JSON object: it does not begin with { and end with }"
        answer = json.loads(body)
        if not isinstance(answer, dict):
            return f"JSON, but a {type(answer).__name__} instead of an object"
        return "" if self._key is None or self._key in answer else f"JSON without {self._key!r}"


def _unpacked(body: bytes) -> tuple[bytes, bool]:
    """The first `BODY_LIMIT` bytes of a packed body, and whether that is all. ValueError: it breaks off."""
    stream = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # tells gzip and zlib apart by itself
    unpacked = stream.decompress(body, BODY_LIMIT)
    if stream.eof:
        return unpacked, True
    if stream.unconsumed_tail:
        return unpacked, False
    raise ValueError("packed data breaks off")
