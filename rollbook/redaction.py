"""Secrets are redacted by value: whatever carries one, in whichever form, it is replaced before it is kept or shown.

The registry is one per process, like `logging`: settings, endpoint profiles and providers add what they know, and every
place where text leaves us (logs, errors, evidence, exports) asks it. It knows a value as it stands; as JSON, URL
encoding, XML, shells and `repr` write it, one over the other too (`spellings.py`); as hexadecimal digits; and each of
these inside base64 (`Authorization: Basic …`), wrapped or not (`base64_text.py`).

A short secret is dangerous to replace: `a` is everywhere. Below `WHOLE_BELOW` characters only whole words are replaced;
below `SHORTEST`, and for what people write where no secret is needed (`EMPTY`, `password`), nothing is.
"""

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from rollbook.base64_text import Base64Text
from rollbook.config.settings import Settings
from rollbook.spellings import Span, Spellings, escaped_runs

MARK = "[redacted]"
_MARK = MARK.encode()
_ROUNDS = 4
SHORTEST = 4
WHOLE_BELOW = 8

NO_SECRETS = frozenset(
    [
        "empty",
        "none",
        "null",
        "dummy",
        "test",
        "token",
        "token-abc123",
        "password",
        "secret",
        "key",
        "api-key",
        "no-key",
        "no-key-required",
        "sk-no-key-required",
        "not-needed",
        "changeme",
        "unused",
        "user",
        "root",
        "admin",
        "osworld",
        "rollbook",
        "postgres",
        "localhost",
        "true",
        "false",
    ]
)
"""Values that protect nothing; replacing them would only spoil what they stand in."""

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
"""Where the parts that we stand on read their own credentials."""


class SecretRegistry:
    """The secrets of this process and how to find them in text and bytes."""

    def __init__(self) -> None:
        self._keep({})

    def add(self, value: str | SecretStr | None) -> bool:
        """Redact this value from now on; False when it is too short or no secret (see the module)."""
        plain = value.get_secret_value() if isinstance(value, SecretStr) else value or ""
        plain = plain.strip()
        if len(plain) < SHORTEST or plain.casefold() in NO_SECRETS or plain in MARK:
            return False
        if plain not in self._secrets:
            # a new one, not a changed one: another thread may be going through it
            self._keep({**self._secrets, plain: Spellings(plain, whole_word=len(plain) < WHOLE_BELOW)})
        return True

    def clear(self) -> None:
        """Forget everything; for tests."""
        self._keep({})

    def text(self, text: str) -> str:
        """The text without secrets."""
        if not self._secrets or len(text) < self._shortest:
            return text
        data = text.encode(errors="surrogatepass")
        cleaned = self.data(data)
        return text if cleaned is data else cleaned.decode(errors="surrogatepass")

    def data(self, data: bytes) -> bytes:
        """The bytes without secrets; only for text in UTF-8, a picture is not looked into."""
        # Again after each round: a short secret may have become a whole word. What this returns it would return
        # unchanged.
        for _ in range(_ROUNDS):
            spans = sorted(self._spans(data))
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

    def _spans(self, data: bytes) -> Iterator[Span]:
        """Where secrets stand; spans may overlap."""
        secrets = self._secrets.values()
        if not secrets or len(data) < self._shortest:
            return
        lowered = data.lower()
        # As text, for short bytes are searched four times as fast in it.
        chars, small = data.decode("latin-1"), lowered.decode("latin-1")
        for secret in [secret for anchor, secret in self._anchors if anchor in chars]:
            yield from secret.find(data)
        for secret in [secret for digits, secret in self._digits if digits in small]:
            yield from secret.find_hex(lowered)
        for run, said in escaped_runs(data):
            for secret in secrets:
                yield from secret.find_escaped(data, run, said)
        text = Base64Text(data)
        yield from _in_base64(text, self._needles)
        if text.edited and self._short_needles:
            # After the last line of base64 a word may follow, and a short secret would not stand alone.
            yield from _in_base64(Base64Text(data, wrapped=False), self._short_needles)

    def _keep(self, secrets: dict[str, Spellings]) -> None:
        """The secrets, and flat lists of what to look for first: most texts hold none of it."""
        found = secrets.values()
        self._anchors = [(secret.anchor.decode(), secret) for secret in found]
        self._digits = [(secret.hex.decode(), secret) for secret in found]
        self._needles = [(needle.decode(), secret) for secret in found for needle in secret.in_base64 or (b"",)]
        self._short_needles = [(needle, secret) for needle, secret in self._needles if secret.whole_word]
        self._shortest = min(map(len, secrets), default=0)
        self._secrets = secrets


def _in_base64(text: Base64Text, needles: list[tuple[str, Spellings]]) -> Iterator[Span]:
    plain = text.plain.decode("latin-1")
    for secret in dict.fromkeys([secret for needle, secret in needles if needle in plain]):
        for phase, stream in text.streams(secret.in_base64):
            for start, end in secret.find(stream):
                if (span := text.origin(phase, start, end)) is not None:
                    yield span


def _without(data: bytes, spans: list[Span]) -> bytes:
    """The data with a mark in place of each span; those that overlap have one mark."""
    pieces, at, (start, end) = [], 0, spans[0]
    for first, last in spans[1:]:
        if first < end:
            end = max(end, last)
            continue
        pieces += [data[at:start], _MARK]
        at, start, end = end, first, last
    return b"".join([*pieces, data[at:start], _MARK, data[end:]])


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


def register_settings(settings: Settings) -> None:
    """Add every secret of the settings, and those of providers that read the environment themselves."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            SECRETS.add(_password(value.get_secret_value()) if name.endswith("_url") else value)
    for name in PROVIDER_VARIABLES:
        SECRETS.add(os.environ.get(name))


def _password(url: str) -> str | None:
    """The password in a URL, as it is used (not as it is written there)."""
    try:
        found = urlsplit(url).password
    except ValueError:
        return None
    return unquote(found) if found else None


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
    sys.excepthook = _last_words


def _last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))
