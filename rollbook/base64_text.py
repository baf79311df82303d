"""Text read as base64, wherever in it base64 may begin, and back to where it stands.

Line breaks within it, escapes of line breaks, `+`, `/` and `=`, and the alphabet for URLs are seen through. Whatever is
no base64 is read as zeros, so that what was encoded ends where it ends.
"""

import binascii
import re
from bisect import bisect_right

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = {ord("-"): ord("+"), ord("_"): ord("/")}
_TABLE = bytes(_URL_SAFE.get(byte, byte if byte in _ALPHABET else ord("A")) for byte in range(256))
_KNOWN = _ALPHABET + b"-_"

# It begins with a class, for which `re` looks fast, and a run of backslashes is tried once: linear, whatever the text.
_EDITS = re.compile(
    rb"[\r\n\\%](?:(?<=[\r\n])[\r\n]*[ \t]*"
    rb"|(?<=\\)(?<!\\\\)\\*+(?:[rn](?:\\++[rn])*[ \t]*|u00(?:2[bBfF]|3[dD])|(?=/))"
    rb"|(?<=%)(?:25){0,4}+(?:0[aA]|(?P<return>0[dD])|2[bBfF]|3[dD]))"
)
_STANDS_FOR = {b"b": b"+", b"f": b"/", b"d": b"="}


def in_base64(value: bytes) -> tuple[bytes, ...]:
    """What of some bytes is certain in base64 of anything around them, one per alignment; empty for a single byte."""
    found = []
    for shift in range(3) if len(value) > 1 else ():
        first = (8 * shift + 5) // 6  # characters that also hold bits of what stands before
        last = 8 * (shift + len(value)) // 6  # the first one that holds bits of what follows
        found.append(binascii.b2a_base64(b"\0" * shift + value)[first:last])
    return tuple(found)


class Base64Text:
    """One text; `streams` are what it may say."""

    def __init__(self, data: bytes, *, wrapped: bool = True) -> None:
        """`wrapped`: base64 goes on after a line break; without, it ends there, and no escape is seen through."""
        self._text = data
        self._stream_starts, self._origins = [0], [(0, len(data), True)]
        self.edited = wrapped and any(byte in data for byte in (b"\n", b"\r", b"\\", b"%"))
        if self.edited:
            self._edit(data)
        self.plain = self._text.translate(_TABLE)
        self._decoded: dict[int, bytes] = {}

    def streams(self, needles: tuple[bytes, ...]) -> list[tuple[int, bytes]]:
        """(position at which base64 begins, the bytes it says) wherever one of the needles is (see `in_base64`)."""
        return [(phase, self._stream(phase)) for phase in (self._phases(needles) if needles else range(4))]

    def _stream(self, phase: int) -> bytes:
        if phase not in self._decoded:
            text = self.plain[phase:]
            self._decoded[phase] = binascii.a2b_base64(text + b"A" * (-len(text) % 4))
        return self._decoded[phase]

    def _phases(self, needles: tuple[bytes, ...]) -> set[int]:
        found: set[int] = set()
        for shift, needle in enumerate(needles):
            at = self.plain.find(needle)
            while at >= 0 and len(found) < 4:
                found.add((at - (8 * shift + 5) // 6) % 4)
                at = self.plain.find(needle, at + 1)
        return found

    def origin(self, phase: int, start: int, end: int) -> tuple[int, int] | None:
        """Where the bytes of a stream stand in the text; None when that is not base64 alone."""
        first, last = phase + 8 * start // 6, phase - (-8 * end // 6)
        if self._text[first:last].translate(None, _KNOWN) or last > len(self._text):
            return None
        return self._origin(first)[0], self._origin(last - 1)[1]

    def _origin(self, at: int) -> tuple[int, int]:
        piece = bisect_right(self._stream_starts, at) - 1
        start, end, kept = self._origins[piece]
        offset = at - self._stream_starts[piece]
        return (start + offset, start + offset + 1) if kept else (start, end)

    def _edit(self, data: bytes) -> None:
        """Take the text apart; a piece is kept as it is, or stands for one character."""
        pieces: list[bytes] = []
        starts: list[int] = []
        origins: list[tuple[int, int, bool]] = []
        length = at = 0

        def add(piece: bytes, start: int, end: int, *, kept: bool) -> None:
            nonlocal length
            pieces.append(piece)
            starts.append(length)
            origins.append((start, end, kept))
            length += len(piece)

        for found in _EDITS.finditer(data):
            if found.start() > at:
                add(data[at : found.start()], at, found.start(), kept=True)
            if not found["return"] and (char := _STANDS_FOR.get(found.group()[-1:].lower())):
                add(char, *found.span(), kept=False)
            at = found.end()
        add(data[at:], at, len(data), kept=True)
        self._text, self._stream_starts, self._origins = b"".join(pieces), starts, origins
