"""Reading of a body as servers write it, and the meaning of a refusal.

JSON is made storable; the bytes themselves are kept as evidence, so nothing is lost:
- NaN, infinities (also `1e999`) and integers with more digits than Python reads become null;
- values nested deeper than `DEEPEST` become null;
- bytes that are not text of their encoding become the replacement character.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from rollbook.errors import (
    AuthFailed,
    BadRequest,
    CallError,
    ContextOverflow,
    RateLimited,
    TransportFailed,
)
from rollbook.redaction import redact

DEEPEST = 64
"""Levels of arrays and objects; what a reply needs is ten."""

# A string (to the end of the text when it is not closed), or a bracket outside of strings. Possessive: no backtracking.
_LEXEMES = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def read_json(raw: bytes) -> Any:
    """The document. Raises ValueError for what is not JSON, and nothing else."""
    text = _shallow(_decoded(raw))
    try:
        return json.loads(text, parse_float=_finite_or_none, parse_constant=_nothing)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer that is too long
        return json.loads(text, parse_float=_finite_or_none, parse_constant=_nothing, parse_int=_short)


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


def _finite_or_none(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _short(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _nothing(_: str) -> None:
    """NaN, Infinity, -Infinity."""


OVERFLOW = re.compile(
    "|".join(
        (
            r"context_length_exceeded",
            r"maximum context length",
            r"maximum model length",
            r"(exceeds?|longer than|too large for) (the )?(model'?s? )?(maximum )?context",
            r"exceed(s|ed)? (the )?(context|max_model_len|available context)",
            r"context (window|length|size) (was |is )?exceeded",
            r"(prompt|input) (is )?too long",
            r"maximum (allowed )?(input|prompt) length",
            r"maximum input (token )?(length|count)",
            r"reduce the length of (the|your) (messages|prompt|input)",
            r"input token count\b.{0,40}exceeds the maximum number of tokens",
            r"range of input length should be",
            r"context (the )?overflows",
            r"loaded with (a )?context length of only",
            r"input length and `?max_tokens`? exceed context limit",
            r"exceeded (the )?model token limit",
            r"context_window_exceeded",
        )
    ),
    re.IGNORECASE,
)
"""Wordings of servers for a prompt that does not fit: OpenAI, vLLM, SGLang, TGI, llama.cpp, xAI, Anthropic, Gemini,
DashScope, LM Studio, Moonshot and gateways before them."""

_CONTEXT_SIZE = re.compile(r"(?:maximum context length|max_model_len)\D{0,30}?(\d{2,9})", re.IGNORECASE)

DEFAULT_RETRY_S = 5.0
LONGEST_RETRY_S = 600.0
ABSURD_RETRY_S = 7 * 86400.0
"""A longer wish than the longest quota window is a mistake of the server (a date, milliseconds), not a wish."""
SHOWN = 600


def complaint(body: bytes) -> str:
    """The server's own words, on one line, shortened."""
    text = " ".join(redact(_words(body)).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _words(body: bytes) -> str:
    plain = body[: 64 * 1024].decode(errors="replace")
    try:
        found: Any = read_json(body)
    except ValueError:
        return plain
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or plain
        code = error.get("code")
        return f"{message} ({code})" if isinstance(code, str) and code else str(message)
    return error if isinstance(error, str) else plain


def refusal(
    status: int, body: bytes, headers: Mapping[str, str], max_output_tokens: int | None = None, model: str = ""
) -> CallError:
    """The error for an answer that is not a success."""
    said = complaint(body)
    about = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    if status == 429 or (status == 503 and not headers.keys().isdisjoint(("retry-after", "retry-after-ms"))):
        return RateLimited(about, retry_after_s=retry_after_s(headers), status=status, body=body)
    if status in (401, 403):
        return AuthFailed(f"{about}; the key of the endpoint profile is not accepted", status=status, body=body)
    if status == 413 or (status in (400, 422) and OVERFLOW.search(said)):
        return _overflow(about, said, status, body, max_output_tokens)
    if status in (408, 425) or status >= 500:
        return TransportFailed(about, status=status, body=body)
    return BadRequest(about + _hint(status, said, model), status=status, body=body)


def _overflow(about: str, said: str, status: int, body: bytes, max_output_tokens: int | None) -> CallError:
    size = _CONTEXT_SIZE.search(said)
    if size and max_output_tokens is not None and max_output_tokens >= int(size[1]):
        # No prompt is short enough: a mistake in the settings must not look like an outcome of the policy.
        hint = f"; sampling.max_output_tokens is {max_output_tokens}, the whole context {size[1]} tokens"
        return BadRequest(about + hint, status=status, body=body)
    return ContextOverflow(about, status=status, body=body)


def _hint(status: int, said: str, model: str) -> str:
    if 300 <= status < 400:
        return "; redirects are not followed: set base_url to where it leads"
    if status == 404:
        return f"; is base_url right (it ends in /v1 as a rule), and is the model {model!r} served there?"
    if re.search(r"return_token_ids|return_meta_info|return_prompt_token_ids|logprobs", said):
        return "; the endpoint does not know the request for token ids: set api = 'openai' in its profile"
    if re.search(r"max_completion_tokens|max_tokens", said):
        return "; api = 'openai' in the profile sends max_completion_tokens, 'vllm' and 'sglang' send max_tokens"
    return ""


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float:
    """Seconds to wait by `Retry-After` (seconds or a date) or `Retry-After-Ms`; 5 without a sane one, at most 600."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return _bounded(milliseconds / 1000)
    said = headers.get("retry-after")
    if (seconds := _number(said)) is not None:
        return _bounded(seconds)
    if said is not None:
        try:
            return _bounded((parsedate_to_datetime(said) - (now or datetime.now(UTC))).total_seconds())
        except (ValueError, TypeError, OverflowError):
            return DEFAULT_RETRY_S
    return DEFAULT_RETRY_S


def _bounded(seconds: float) -> float:
    return DEFAULT_RETRY_S if seconds > ABSURD_RETRY_S else min(max(seconds, 0.0), LONGEST_RETRY_S)


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else None
