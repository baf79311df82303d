"""Secrets are redacted by value: whatever carries one, in whichever form, it is replaced before it is kept or shown.

The registry is one per process, like `logging`: settings, endpoint profiles and providers add what they know, and every
place where text leaves us (logs, errors, evidence, exports) asks it. It knows a value as it stands, as JSON, URL
encoding, XML and `repr` write it, and inside base64 at any of its three alignments (`Authorization: Basic …`).

A short secret is dangerous to replace: `a` is everywhere. Below `WHOLE_BELOW` characters only whole words are replaced;
below `SHORTEST`, and for what people write where no secret is needed (`EMPTY`, `password`), nothing is.
"""

import base64
import html
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

from pydantic import SecretStr

from rollbook.settings import Settings

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
        self._values: set[str] = set()
        self._texts: list[str] = []
        self._datas: list[bytes] = []
        self._text = re.compile("")
        self._bytes = re.compile(b"")

    def add(self, value: str | SecretStr | None) -> bool:
        """Redact this value from now on; False when it is too short or no secret (see the module)."""
        plain = value.get_secret_value() if isinstance(value, SecretStr) else value or ""
        plain = plain.strip()
        if len(plain) < SHORTEST or plain.casefold() in NO_SECRETS or plain in MARK:
            return False
        if plain not in self._values:
            self._values.add(plain)
            self._compile()
        return True

    def clear(self) -> None:
        """Forget everything; for tests."""
        self._values.clear()
        self._texts, self._datas = [], []

    def text(self, text: str) -> str:
        """The text without secrets."""
        # Looking for each form is much faster than the pattern, and there is hardly ever one. Again after each round:
        # a short secret may have become a whole word. What this returns it would return unchanged.
        for _ in range(_ROUNDS):
            if not any(form in text for form in self._texts) or (cleaned := self._text.sub(MARK, text)) == text:
                break
            text = cleaned
        return text

    def data(self, data: bytes) -> bytes:
        """The bytes without secrets; only for text in UTF-8, a picture is not looked into."""
        for _ in range(_ROUNDS):
            if not any(form in data for form in self._datas) or (cleaned := self._bytes.sub(_MARK, data)) == data:
                break
            data = cleaned
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

    def _compile(self) -> None:
        # The longest first: a secret that contains another one is replaced whole.
        forms = sorted({form for value in self._values for form in _forms(value)}, key=len, reverse=True)
        pattern = "|".join(_bounded(form) for form in forms)
        self._text = re.compile(pattern)
        self._bytes = re.compile(pattern.encode())
        self._texts, self._datas = forms, [form.encode() for form in forms]


def _bounded(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= WHOLE_BELOW else rf"(?<![0-9A-Za-z_]){escaped}(?![0-9A-Za-z_])"


def _forms(value: str) -> set[str]:
    forms = {value, quote(value, safe=""), quote(value), quote_plus(value), repr(value)[1:-1]}
    forms |= {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    forms |= {html.escape(value), html.escape(value, quote=False)}  # accessibility trees are XML
    if len(value) >= WHOLE_BELOW:
        forms |= set(_base64_forms(value.encode()))
    for _ in range(2):  # json inside json: a reply kept as a string within a document
        forms |= {json.dumps(form)[1:-1] for form in list(forms)}
    return {form for form in forms if len(form) >= SHORTEST}


def _base64_forms(value: bytes) -> Iterable[str]:
    """What of `value` is certain in base64 of any text around it: one form per alignment, both alphabets."""
    for shift in range(3):
        first = (8 * shift + 5) // 6  # characters that also hold bits of what stands before
        last = 8 * (shift + len(value)) // 6  # the first one that holds bits of what follows
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            form = encode(b"\0" * shift + value).decode()[first:last]
            if len(form) >= WHOLE_BELOW:
                yield form


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
