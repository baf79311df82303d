"""Token ids and log probabilities of a reply, and whether a trainer may believe them (upstream contract §3.1).

Where they stand:
- vLLM: `prompt_token_ids` of the reply, `token_ids` of the choice, `logprobs.content[].logprob`.
- SGLang: `prompt_token_ids` of the choice, `meta_info.output_token_logprobs`, entries `[logprob, token id, text]`.
- older vLLM: `logprobs.content[].token` as `token_id:<id>`.
- NeMo Gym: `prompt_token_ids`, `generation_token_ids`, `generation_log_probs` of the message.

Ids are non-negative integers, at least one; log probabilities are finite; both are equally many. What breaks a rule is
left out and named, never mended.

Servers of mixtures of experts may tell to which experts each token was routed (`routed_experts`): in the choice (vLLM),
the message (NeMo Gym), `meta_info` or `sgl_ext` (SGLang). It is kept as the server wrote it, an array or base64.
"""

import math
from dataclasses import dataclass
from typing import Any

from models.sanitize import sanitize

_TOKEN_ID = "token_id:"
_LARGEST_ID = 2**31 - 1
"""Every tokenizer numbers its tokens within 32 bits; an id beyond is none."""


@dataclass(frozen=True)
class TokenEvidence:
    """What the reply says of its tokens."""

    prompt_token_ids: list[int] | None
    sampled_token_ids: list[int] | None
    sampled_logprobs: list[float] | None
    problems: tuple[str, ...]
    """Why the evidence is incomplete: reasons of the closed set; empty when it is complete."""
    routed_experts: list[Any] | str | None = None
    """As the server gave them; None where it did not. No reason of its own: few servers do."""


WITHHELD = TokenEvidence(
    None, None, None, ("exact_prompt_token_ids_unavailable", "exact_sampled_token_ids_unavailable")
)
"""For a call out of which a secret was taken: its tokens would still spell it."""

_EXTENSIONS = ("meta_info", "sgl_ext", "sglext")
_SPELLING = ("token_ids", "prompt_token_ids", "logprobs", "routed_experts", *_EXTENSIONS)


def without_tokens(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply without anything that spells its text token by token."""
    if isinstance(reply.get("choices"), list):
        choices = [_unspelled(choice) if isinstance(choice, dict) else choice for choice in reply["choices"]]
        reply = {**reply, "choices": choices}
    return {key: value for key, value in reply.items() if key not in (*_SPELLING, "prompt_logprobs")}


def _unspelled(choice: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in choice.items() if key not in _SPELLING}
    if isinstance(kept.get("message"), dict):
        spelled = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
        kept["message"] = {key: value for key, value in kept["message"].items() if key not in spelled}
    return kept


def token_evidence(reply: dict[str, Any], choice: dict[str, Any]) -> TokenEvidence:
    """Read and judge the arrays of a reply."""
    sampled, logprobs = _sampled(choice)
    prompt = _first(reply.get("prompt_token_ids"), choice.get("prompt_token_ids"), _message(choice, "prompt_token_ids"))
    problems: list[str] = []
    usage = reply.get("usage")
    counted = usage if isinstance(usage, dict) else {}
    # SGLang counts an image's tokens in `usage` but may list the prompt before they are put in.
    prompt_count = counted.get("prompt_tokens") if reply.get("prompt_token_ids") is not None else None
    prompt_ids = _ids(prompt, "exact_prompt_token_ids", prompt_count, problems)
    sampled_ids = _ids(sampled, "exact_sampled_token_ids", counted.get("completion_tokens"), problems)
    numbers = _logprobs(logprobs, problems)
    if sampled_ids is not None and numbers is not None and len(sampled_ids) != len(numbers):
        problems.append("sampled_token_logprob_length_mismatch")
    return TokenEvidence(prompt_ids, sampled_ids, numbers, tuple(problems), _routed_experts(reply, choice))


def _routed_experts(reply: dict[str, Any], choice: dict[str, Any]) -> list[Any] | str | None:
    places = [choice, choice.get("message")]
    places += [place.get(name) for place in (choice, reply) for name in _EXTENSIONS]
    given = _first(*(place.get("routed_experts") for place in places if isinstance(place, dict)))
    kept: list[Any] | str | None = sanitize(given) if isinstance(given, list | str) and given else None
    return kept


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _message(choice: dict[str, Any], key: str) -> Any:
    message = choice.get("message")
    return message.get(key) if isinstance(message, dict) else None


def _sampled(choice: dict[str, Any]) -> tuple[Any, Any]:
    """Sampled ids and log probabilities, unjudged; from one source where one has both."""
    meta = choice.get("meta_info")
    entries = meta.get("output_token_logprobs") if isinstance(meta, dict) else None
    if isinstance(entries, list):
        pairs = [entry if isinstance(entry, list) and len(entry) >= 2 else [None, None] for entry in entries]
        return _first(choice.get("token_ids"), [pair[1] for pair in pairs]), [pair[0] for pair in pairs]
    content = choice["logprobs"].get("content") if isinstance(choice.get("logprobs"), dict) else None
    listed = [entry if isinstance(entry, dict) else {} for entry in content] if isinstance(content, list) else None
    ids = _first(choice.get("token_ids"), _message(choice, "generation_token_ids"))
    if ids is None and listed and all(str(entry.get("token", "")).startswith(_TOKEN_ID) for entry in listed):
        ids = [_number(str(entry["token"]).removeprefix(_TOKEN_ID)) for entry in listed]
    logprobs = None if listed is None else [entry.get("logprob") for entry in listed]
    return ids, _first(logprobs, _message(choice, "generation_log_probs"))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_LARGEST_ID)) else None


def _ids(value: Any, what: str, counted: Any, problems: list[str]) -> list[int] | None:
    """The ids, or None with the reason noted. `counted` is how many the server says there were."""
    if value is None:
        problems.append(f"{what}_unavailable")
        return None
    whole = isinstance(value, list) and bool(value)
    if (
        not whole
        or not all(type(one) is int and 0 <= one <= _LARGEST_ID for one in value)
        or _other_count(value, counted)
    ):
        problems.append(f"{what}_invalid")
        return None
    return list(value)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_ID


def _other_count(value: list[int], counted: Any) -> bool:
    return type(counted) is int and counted > 0 and counted != len(value)


def _logprobs(value: Any, problems: list[str]) -> list[float] | None:
    if value is None:
        problems.append("exact_sampled_logprobs_unavailable")
        return None
    if not isinstance(value, list) or not value or not all(_finite(one) for one in value):
        problems.append("exact_sampled_logprobs_invalid")
        return None
    return [float(one) for one in value]


def _finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False
