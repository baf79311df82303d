"""Values that a Postgres row can hold: text without NUL and unpaired surrogates, finite numbers, 32-bit counts."""

import math
import re
from typing import Any

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
SURROGATE = re.compile("[\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

LARGEST_COUNT = 2**31 - 1
"""The largest value of an integer column."""


def clean_text(text: str) -> str:
    """Replace every character that Postgres and UTF-8 cannot hold by U+FFFD."""
    return UNSTORABLE.sub(REPLACEMENT, text)


def sanitize(value: Any) -> Any:
    """Apply `clean_text` to every string of a JSON value, keys included; raises ValueError for NaN and infinities.

    The exact bytes stay in the artifact store, so nothing is lost.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number that JSON can hold")
    if isinstance(value, dict):
        return {sanitize(key): sanitize(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sanitize(item) for item in value]
    return value


def find_unstorable(value: Any, path: str = "", chars: re.Pattern[str] = UNSTORABLE) -> str | None:
    """Path of the first string or key that Postgres cannot hold, for instance `tasks.ids`; None without any."""
    if isinstance(value, str):
        return path if chars.search(value) else None
    if isinstance(value, dict):
        keys = (find_unstorable(key, path, chars) for key in value)
        items = (find_unstorable(item, f"{path}.{key}" if path else str(key), chars) for key, item in value.items())
        return next((place for place in (*keys, *items) if place is not None), None)
    if isinstance(value, list):
        return next((place for item in value if (place := find_unstorable(item, path, chars)) is not None), None)
    return None
