"""JSON as servers write it, made plain: what is read from here on can be stored, whatever was sent.

The bytes themselves are kept as evidence, so nothing is lost by it:
- NaN, infinities (also `1e999`) and integers with more digits than Python reads become null;
- what is nested deeper than `DEEPEST` becomes null;
- bytes that are no text of their encoding become the replacement character.
"""

import json
import math
import re
from typing import Any

DEEPEST = 64
"""Levels of arrays and objects; what a reply needs is ten."""

# A string (to the end of the text when it is not closed), or a bracket outside of strings. Possessive: no backtracking.
_LEXEMES = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def read_json(raw: bytes) -> Any:
    """The document. Raises ValueError for what is no JSON, and nothing else."""
    text = _shallow(_decoded(raw))
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_nothing)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer that is too long
        return json.loads(text, parse_float=_finite, parse_constant=_nothing, parse_int=_short)


def _decoded(raw: bytes) -> str:
    encoding = json.detect_encoding(raw)
    try:
        return raw.decode(encoding, "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode(encoding, "replace")


def _shallow(text: str) -> str:
    """The text with `null` in place of what is too deep: by the text, as reading it could exhaust the stack."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return text
    kept: list[str] = []
    depth = start = 0
    for found in _LEXEMES.finditer(text):
        bracket = text[found.start()]
        if bracket in "[{":
            depth += 1
            if depth == DEEPEST + 1:
                kept.append(text[start : found.start()])
        elif bracket in "]}":
            if depth == DEEPEST + 1:
                kept.append("null")
                start = found.end()
            depth -= 1
    if depth > DEEPEST:
        raise ValueError("its brackets are not closed")
    return "".join([*kept, text[start:]])


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _short(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _nothing(_: str) -> None:
    """NaN, Infinity, -Infinity."""
