"""Replace secrets by value in everything that this process writes: logs, errors, evidence, exports.

The registry is one per process, like `logging`: settings, endpoint profiles and providers add their secrets. It finds
a secret as it is; as URLs, XML and `repr` write it; each of these in up to three layers of JSON; as hexadecimal digits;
and all of it inside base64 (`Authorization: Basic …`). docs/reference/model-endpoints.md lists what is not found.

Replacing a short secret damages text: `a` is everywhere. Below `WHOLE_BELOW` characters only whole words are replaced;
values below `SHORTEST`, and placeholders such as `EMPTY` or `password`, are not replaced.
"""

import base64
import html
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit
from xml.sax.saxutils import escape

from pydantic import BaseModel, SecretStr

MARK = "[redacted]"
SHORTEST = 4
WHOLE_BELOW = 8

NO_SECRETS = frozenset(
    """
    empty none null true false dummy test unused changeme token token-abc123 password secret key api-key no-key
    no-key-required sk-no-key-required not-needed user root admin osworld rollbook postgres localhost
    osworld-public-evaluation
    """.split()  # noqa: SIM905
)
"""Placeholders that protect nothing; replacing them would only damage the text around them."""

PROVIDER_VARIABLES = (
    "E2B_API_KEY",
    "E2B_ACCESS_TOKEN",
    "TEMPORAL_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "OPENAI_API_KEY",
)
"""Environment variables from which libraries read credentials by themselves."""

Span = tuple[int, int]

_ROUNDS = 4
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{5,}")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
# An escape before a word ends in letters or digits (`\n`, `%20`, `\u00e9`) but is not part of the word.
_WORD_BEFORE = re.compile(rb"(?:(?<![0-9A-Za-z_])|(?<=\\[nrtbfv])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))")
_WORD_AFTER = rb"(?![0-9A-Za-z_])"
_HEX_WORD = rb"3[0-9]|[46][1-9a-f]|[57][0-9a]|5f"


def spellings(secret: str) -> set[str]:
    """The usual spellings of a text: raw, in URLs, XML and `repr`, and each of these in up to three layers of JSON."""
    quoted = {quote(secret, safe=safe, errors="replace") for safe in ("", "/", " +", "!'()*")}
    quoted.add(quote_plus(secret, errors="replace"))
    forms = {secret, *quoted, *(re.sub("%..", lambda code: code[0].lower(), form) for form in quoted)}
    forms |= {html.escape(secret), html.escape(secret).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")}
    forms |= {escape(secret), escape(secret, {"'": "&apos;", '"': "&quot;"})}
    # A text with both kinds of quotation marks has the single ones escaped.
    forms |= {repr(secret)[1:-1], repr('"' + secret)[2:-1]}
    layer = forms
    for _ in range(3):
        layer = {written for form in layer for written in _json(form)}
        forms |= layer
    return forms


def _json(text: str) -> Iterator[str]:
    for ascii_only in (True, False):
        written = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield written
        # Go, and with it the Temporal server and CLI, escapes these as well.
        yield re.sub("[<>&]", lambda char: f"\\u{ord(char[0]):04x}", written)


class _Secret:
    """One secret: its spellings as patterns, each with the bytes that a text must contain for it to be worth a try."""

    def __init__(self, secret: str) -> None:
        forms = sorted((_bytes(form) for form in spellings(secret)), key=len, reverse=True)
        raw = _bytes(secret)
        pattern, digits = b"(?:" + b"|".join(map(re.escape, forms)) + b")", raw.hex().encode()
        hexadecimal = digits
        self._whole_word = len(secret) < WHOLE_BELOW
        if self._whole_word:
            pattern = pattern + _WORD_AFTER
            hexadecimal = b"(?<!" + _HEX_WORD.replace(b"|", b")(?<!") + b")" + digits + b"(?!" + _HEX_WORD + b")"
        self._plain, self._hexadecimal = re.compile(pattern), re.compile(hexadecimal, re.IGNORECASE)
        # No encoder above touches ASCII letters and digits: their longest run is in every spelling.
        self._anchor = max(re.findall("[0-9A-Za-z]+", secret), key=len, default="")
        self._digits = (digits.decode(), digits.decode().upper())
        encoded = {raw, _bytes(quote(secret, safe="", errors="replace")), *map(_bytes, _json(secret))}
        self._encoded = tuple({needle.decode() for form in encoded for needle in _base64_needles(form)})

    def find(self, data: bytes, chars: str) -> Iterator[Span]:
        """Spans of the secret in the data; `chars` is the data as Latin-1, which is searched four times as fast."""
        if self._anchor in chars:
            yield from self._find_plain(data)
        if any(digits in chars for digits in self._digits):
            yield from (match.span() for match in self._hexadecimal.finditer(data))
        if any(needle in chars for needle in self._encoded):
            yield from self._find_in_base64(data)

    def _find_plain(self, data: bytes) -> Iterator[Span]:
        for match in self._plain.finditer(data):
            # Not part of the pattern: `re` is fast only for patterns that begin with characters.
            if not self._whole_word or _WORD_BEFORE.match(data, match.start()):
                yield match.span()

    def _find_in_base64(self, data: bytes) -> Iterator[Span]:
        for run in _BASE64.finditer(data):
            # Base64 may begin anywhere in a run of its characters: one of four readings is the right one.
            for begin in range(run.start(), run.start() + 4):
                text = data[begin : run.end()].translate(_URL_SAFE)
                for start, end in self._find_plain(base64.b64decode(text + b"A" * (-len(text) % 4))):
                    yield begin + 8 * start // 6, min(begin - (-8 * end // 6), run.end())


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _base64_needles(value: bytes) -> Iterator[bytes]:
    """The characters that base64 of any text around the value must contain, for each of the three alignments."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + value)
        # Left out: characters that also hold bits of the bytes before or after the value.
        own = encoded[(8 * shift + 5) // 6 : 8 * (shift + len(value)) // 6]
        yield from {own, own.translate(bytes.maketrans(b"+/", b"-_"))}


class SecretRegistry:
    """The secrets of this process; finds and replaces them in text and bytes."""

    def __init__(self) -> None:
        self._secrets: dict[str, _Secret] = {}

    def add(self, value: str | SecretStr | None) -> bool:
        """Redact this value from now on; False when it is too short or a placeholder (see the module)."""
        plain = (value.get_secret_value() if isinstance(value, SecretStr) else value or "").strip()
        if len(plain) < SHORTEST or plain.casefold() in NO_SECRETS or plain in MARK:
            return False
        if plain not in self._secrets:
            # A new dict: another thread may be iterating over the present one.
            self._secrets = {**self._secrets, plain: _Secret(plain)}
        return True

    def clear(self) -> None:
        """Forget everything; for tests."""
        self._secrets = {}

    def text(self, text: str) -> str:
        """The text without secrets."""
        data = _bytes(text)
        cleaned = self.data(data)
        return text if cleaned is data else cleaned.decode(errors="surrogatepass")

    def data(self, data: bytes) -> bytes:
        """The bytes without secrets; only for text in UTF-8, pictures are not searched."""
        # Repeated, because a short secret may have become a whole word: the result is stable under another call.
        for _ in range(_ROUNDS):
            chars = data.decode("latin-1")
            spans = sorted(span for secret in self._secrets.values() for span in secret.find(data, chars))
            if not spans:
                break
            data = _without(data, spans)
        return data

    def value(self, value: Any) -> Any:
        """A JSON value, each of its strings and keys without secrets."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key) if isinstance(key, str) else key: self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


def _without(data: bytes, spans: list[Span]) -> bytes:
    """The data with a mark in place of each span; overlapping spans share one mark."""
    pieces, at = [], 0
    for start, end in spans:
        if start >= at:
            pieces += [data[at:start], MARK.encode()]
        at = max(at, end)
    return b"".join([*pieces, data[at:]])


SECRETS = SecretRegistry()
"""The registry of this process."""


def redact(text: str) -> str:
    """The text without the secrets that this process knows."""
    return SECRETS.text(text)


def redact_bytes(data: bytes) -> bytes:
    """UTF-8 bytes without the secrets that this process knows."""
    return SECRETS.data(data)


def redact_value(value: Any) -> Any:
    """A JSON value without the secrets that this process knows."""
    return SECRETS.value(value)


def redact_head(text: str | bytes, limit: int) -> str:
    """The first `limit` characters of the text without secrets."""
    return _clean_text(text)[:limit]


def redact_tail(text: str | bytes, limit: int) -> str:
    """The last `limit` characters of the text without secrets."""
    return _clean_text(text)[-limit:]


def _clean_text(text: str | bytes) -> str:
    # Before it is cut: nothing recognizes the part of a secret that a cut leaves.
    return redact(text) if isinstance(text, str) else redact_bytes(text).decode(errors="replace")


def register_settings(settings: BaseModel) -> None:
    """Add every secret of the settings, and those of libraries that read the environment themselves."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            SECRETS.add(_password(value.get_secret_value()) if name.endswith("_url") else value)
    for name in PROVIDER_VARIABLES:
        SECRETS.add(os.environ.get(name))


def _password(url: str) -> str | None:
    """The password in a URL, decoded."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return None
    return unquote(password) if password else None


class RedactingFilter(logging.Filter):
    """Rewrites a record, its traceback included, before a handler formats it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always passes the record on."""
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True


_FILTER = RedactingFilter()


def install() -> None:
    """Redact what this process logs and the traceback it may end with. Call it after logging is configured."""
    for handler in [*logging.getLogger().handlers, *filter(None, [logging.lastResort])]:
        if _FILTER not in handler.filters:
            handler.addFilter(_FILTER)
    sys.excepthook = _redacting_excepthook


def _redacting_excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))
