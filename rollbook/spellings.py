"""How a secret may be written, as patterns over UTF-8 bytes: character by character, whatever escapes were piled up.

No encoder touches ASCII letters and digits unless it encodes everything. So the longest run of them in a secret, its
anchor, stands in every such spelling as it is; it is looked for first, and only around it anything costly is done.
Everything else may be escaped as JSON, Go, Python, URLs, XML and shells do, several times over.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from html.entities import codepoint2name

from rollbook.base64_text import in_base64

Span = tuple[int, int]

_DEEP = 63
"""Backslashes before one character: JSON nested six deep has so many before a quotation mark."""
_WIDEST = 128
"""Bytes that one character may take, about."""

_SLASH = rb"(?:\\|%(?:25){0,4}5[cC])"
_AMP = rb"(?:&|" + _SLASH + rb"{1,32}u0026|%(?:25){0,4}26)(?:amp;){0,4}"
_SHORT_ESCAPES = {"\n": b"n", "\r": b"r", "\t": b"t", "\b": b"b", "\f": b"f", "\v": b"v"}
_NAMES = {"'": "apos", **{chr(point): name for point, name in codepoint2name.items()}}

_HEX_ALNUM = rb"(?:3[0-9]|[46][1-9a-fA-F]|[57][0-9aA])"
# It begins with a class, for which `re` looks fast, and a run of backslashes is tried once: linear, whatever the text.
_ESCAPED_ALNUM = re.compile(
    rb"[%\\&](?:(?<=%)(?:25){0,4}+(?:(?P<percent>"
    + _HEX_ALNUM
    + rb")|5[cC](?:\\|%(?:25){0,4}5[cC])*+(?:x|u00)(?P<slashed>"
    + _HEX_ALNUM
    + rb"))|(?<=\\)(?<!\\\\)\\*+(?:x|u00)(?P<plain>"
    + _HEX_ALNUM
    + rb")|(?<=&)(?:amp;)*+#(?:[xX]0*+(?P<named>"
    + _HEX_ALNUM
    + rb")|0*+(?P<decimal>4[89]|5[0-7]|6[5-9]|[78][0-9]|90|9[7-9]|1[01][0-9]|12[0-2]));)"
)
_HEX_GROUPS = ("percent", "slashed", "plain", "named")

_BEFORE = rb"(?:(?<![0-9A-Za-z_])|(?<=\\[nrtbfv])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9a-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
_BEFORE_ESCAPES = _BEFORE.replace(rb"A-Za-z_]", rb"A-Za-z_\\]")
"""Where backslashes are part of it, it does not begin in the midst of them."""
_AFTER = rb"(?![0-9A-Za-z_])"
_WORD_IN_HEX = rb"3[0-9]|[46][1-9a-f]|[57][0-9a]|5f"


class Spellings:
    """One secret and where it is written in some bytes."""

    def __init__(self, secret: str, *, whole_word: bool) -> None:
        """`whole_word`: only where no letter or digit stands next to it."""
        self.hex = secret.encode(errors="surrogatepass").hex().encode()
        self.whole_word = whole_word
        after = _AFTER if whole_word else b""
        runs = re.findall(r"[0-9A-Za-z]+", secret)
        anchor = max(runs, key=len, default="")
        at = secret.index(anchor)
        self.anchor = anchor.encode()
        self.in_base64 = in_base64(self.anchor)
        self._window = _WIDEST * (at + 1)
        before = (_BEFORE_ESCAPES if at else _BEFORE) if whole_word else b""
        self._head = re.compile(before + _spelled(secret[:at], last=False) + rb"\Z") if at or whole_word else None
        self._tail = re.compile(_spelled(secret[at + len(anchor) :]) + after)
        self._secret = secret
        # Without letters and digits there is no anchor; how its first character may begin is looked for instead.
        self._keys = _keys(secret[0]) if not anchor else ()

    @cached_property
    def _whole(self) -> re.Pattern[bytes]:
        """Letters and digits may be escaped too; costly, and hardly ever needed."""
        before, after = (_BEFORE_ESCAPES, _AFTER) if self.whole_word else (b"", b"")
        return re.compile(before + _spelled(self._secret, letters=True) + after)

    def find(self, data: bytes) -> list[Span]:
        """Where it stands, escaped in any way that leaves letters and digits alone."""
        if not self.anchor:
            likely = any(key in data for key in self._keys)
            return [found.span() for found in self._whole.finditer(data)] if likely else []
        spans: list[Span] = []
        at = data.find(self.anchor)
        while at >= 0:
            tail = self._tail.match(data, at + len(self.anchor))
            start = self._start(data, at) if tail else None
            if tail and start is not None:
                spans.append((start, tail.end()))
            at = data.find(self.anchor, at + 1)
        return spans

    def find_escaped(self, data: bytes, run: Span, said: bytes) -> list[Span]:
        """Where it stands around a run of escaped letters and digits that says `said`."""
        if not self.anchor or self.anchor not in said:
            return []
        reach = _WIDEST * len(self._secret)
        around = self._whole.finditer(data, max(0, run[0] - reach), run[1] + reach)
        return [found.span() for found in around]

    def find_hex(self, lowered: bytes) -> list[Span]:
        """Where it stands as hexadecimal digits; in lower case."""
        spans: list[Span] = []
        at = lowered.find(self.hex)
        while at >= 0:
            end = at + len(self.hex)
            neighbours = lowered[max(0, at - 2) : at], lowered[end : end + 2]
            if not (self.whole_word and any(re.fullmatch(_WORD_IN_HEX, one) for one in neighbours)):
                spans.append((at, end))
            at = lowered.find(self.hex, at + 1)
        return spans

    def _start(self, data: bytes, anchor: int) -> int | None:
        if self._head is None:
            return anchor
        found = self._head.search(data, max(0, anchor - self._window), anchor)
        return found.start() if found else None


def escaped_runs(data: bytes) -> Iterator[tuple[Span, bytes]]:
    """Runs of letters and digits that are escaped although nothing demands it, and what they say."""
    start, end, said = 0, -1, bytearray()
    for found in _ESCAPED_ALNUM.finditer(data):
        if found.start() != end:
            if said:
                yield (start, end), bytes(said)
            start, said = found.start(), bytearray()
        end = found.end()
        said.append(int(found["decimal"]) if found["decimal"] else int(_hex_of(found), 16))
    if said:
        yield (start, end), bytes(said)


def _hex_of(found: re.Match[bytes]) -> bytes:
    return next(found[group] for group in _HEX_GROUPS if found[group])


def _spelled(text: str, *, letters: bool = False, last: bool = True) -> bytes:
    """A pattern for the characters. `letters`: they may be escaped too. `last`: the secret ends with the text."""
    parts = []
    for found in re.finditer(r"\\+|.", text, re.DOTALL):
        part = found.group()
        if part.startswith("\\"):
            parts.append(_backslashes(len(part), at_end=last and found.end() == len(text)))
        elif part.isascii() and part.isalnum():
            parts.append(_either([part.encode(), *_escapes(part)]) if letters else part.encode())
        else:
            parts.append(_character(part))
    return b"".join(parts)


def _backslashes(count: int, *, at_end: bool) -> bytes:
    """Each is 1, 2, 4, … of them. At the end as many as are surely its own: what follows may have escapes as well."""
    quoted = rb"(?:%(?:25){0,4}5[cC]){" + b"%d,%d}" % (count, _DEEP * count)
    once = _either(_escapes("\\")) + b"{%d}" % count
    if at_end:
        return _either([quoted, once, *(rb"\\{%d}" % (count << depth) for depth in reversed(range(6)))])
    return _either([_SLASH + b"{%d,%d}" % (count, _DEEP * count), once])


def _character(char: str) -> bytes:
    raw = [re.escape(char.encode(errors="surrogatepass"))]
    if char == "%":
        raw = [rb"%(?:25){0,4}"]
    elif char == "&":
        raw = [_AMP]
    elif char == " ":
        raw += [rb"\+", rb"%(?:25){0,4}2[bB]"]
    elif char in _SHORT_ESCAPES:
        raw.append(_SLASH + rb"{1,32}" + _SHORT_ESCAPES[char])
    elif char == "'":
        raw.insert(0, rb"'" + _either([_SLASH + rb"{0,63}\"'" + _SLASH + rb"{0,63}\"", _SLASH + rb"{1,63}'"]) + rb"'")
    # raw last: an ampersand is the beginning of its own entities
    return _SLASH + b"{0,%d}" % _DEEP + _either([*_escapes(char), *raw])


def _escapes(char: str) -> list[bytes]:
    """Escapes that name the character by its number or name."""
    point, raw = ord(char), char.encode(errors="surrogatepass")
    slash = _SLASH + rb"{1,32}"
    found = [
        b"".join(rb"%(?:25){0,4}" + _hex(f"{byte:02x}") for byte in raw),
        _AMP + b"#0{0,6}%d;" % point,
        _AMP + b"#[xX]0{0,6}" + _hex(f"{point:x}") + b";",
        b"".join(slash + b"x" + _hex(f"{byte:02x}") for byte in raw),
        b"".join(slash + b"%03o" % byte for byte in raw),
        slash + b"U" + _hex(f"{point:08x}"),
    ]
    units = char.encode("utf-16-be", errors="surrogatepass").hex()
    found.append(b"".join(slash + b"u" + _hex(units[at : at + 4]) for at in range(0, len(units), 4)))
    if 128 <= point < 256:
        found.append(slash + b"x" + _hex(f"{point:02x}"))
    if name := _NAMES.get(char):
        found.append(_AMP + name.encode() + b";")
    return found


def _keys(char: str) -> tuple[bytes, ...]:
    raw = char.encode(errors="surrogatepass")
    return (raw, b"%", b"&", b"\\", *((b"+",) if char == " " else ()))


def _hex(digits: str) -> bytes:
    return "".join(one if one.isdigit() else f"[{one}{one.upper()}]" for one in digits).encode()


def _either(options: list[bytes]) -> bytes:
    return b"(?:" + b"|".join(options) + b")"
