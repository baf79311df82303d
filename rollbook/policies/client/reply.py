"""A reply, read: facts only. Whether it parses is decided by the protocol, whether it counts by the runner.

Token ids and log probabilities are found here:
- vLLM: `prompt_token_ids` of the reply, `token_ids` of the choice, `logprobs.content[].logprob`.
- SGLang: `prompt_token_ids` of the choice, `meta_info.output_token_logprobs`, entries `[logprob, token id, text]`.
- older vLLM: `logprobs.content[].token` as `token_id:<id>`.
- NeMo Gym: `prompt_token_ids`, `generation_token_ids`, `generation_log_probs` of the message.

Ids are non-negative integers, at least one; log probabilities are finite; both are equally many. A value that breaks a
rule is left out and named, never repaired.

Servers of mixtures of experts may report to which experts each token was routed (`routed_experts`): in the choice
(vLLM), the message (NeMo Gym), `meta_info` or `sgl_ext` (SGLang). It is kept as the server wrote it, an array or
base64.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from models.identity import canonical_json
from models.sanitize import LARGEST_COUNT, sanitize
from rollbook.errors import CallError, TransportFailed
from rollbook.policies.client.faults import OVERFLOW, complaint, read_json, refusal
from rollbook.redaction import redact_bytes, redact_head, redact_value

_TOKEN_ID = "token_id:"
_LARGEST_ID = 2**31 - 1
"""Every tokenizer numbers its tokens within 32 bits; an id beyond is none."""


@dataclass(frozen=True)
class TokenEvidence:
    """Token evidence of a reply."""

    prompt_token_ids: list[int] | None
    sampled_token_ids: list[int] | None
    sampled_logprobs: list[float] | None
    problems: tuple[str, ...]
    """Reasons why the evidence is incomplete, of the closed set; empty when it is complete."""
    routed_experts: list[Any] | str | None = None
    """As the server gave them; None where it did not. No reason of its own: few servers do."""


WITHHELD = TokenEvidence(
    None, None, None, ("exact_prompt_token_ids_unavailable", "exact_sampled_token_ids_unavailable")
)
"""For a call out of which a secret was taken: its tokens would still spell it."""

FAILED_GENERATIONS = ("abort", "error", "network_error", "insufficient_system_resource")
"""Values of `finish_reason` by which servers say that they failed half way: SGLang, OpenRouter, Zhipu, DeepSeek.
`content_filter` is none of them: it is about what the model wrote."""

ERROR_NAMES = {
    "invalid_request_error": 400,
    "invalid_argument": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 503,
}
"""HTTP statuses of the names that OpenAI, Anthropic and Gemini give to errors."""

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
    prompt = _first(
        reply.get("prompt_token_ids"), choice.get("prompt_token_ids"), _in_message(choice, "prompt_token_ids")
    )
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


def _in_message(choice: dict[str, Any], key: str) -> Any:
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
    ids = _first(choice.get("token_ids"), _in_message(choice, "generation_token_ids"))
    if ids is None and listed and all(str(entry.get("token", "")).startswith(_TOKEN_ID) for entry in listed):
        ids = [_number(str(entry["token"]).removeprefix(_TOKEN_ID)) for entry in listed]
    logprobs = None if listed is None else [entry.get("logprob") for entry in listed]
    return ids, _first(logprobs, _in_message(choice, "generation_log_probs"))


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


@dataclass(frozen=True)
class ChatReply:
    """A completed call. Truncated or empty output is a completed call too: see `finish_reason` and `content`."""

    content: str | None
    reasoning: str | None
    tool_calls: list[dict[str, Any]]
    """As the server gave them: `{"id", "type", "function": {"name", "arguments": "<JSON text>"}}`."""
    finish_reason: str | None
    """`stop`, `length`, `tool_calls`, `content_filter`, … as the server reported it."""
    prompt_token_ids: list[int] | None
    sampled_token_ids: list[int] | None
    sampled_logprobs: list[float] | None
    token_evidence_problems: tuple[str, ...]
    """Reasons why token evidence is incomplete (a closed set); empty when it is complete."""
    usage: dict[str, Any]
    """`prompt_tokens`, `completion_tokens`, … as the server counted them; empty when it did not."""
    model_name: str
    """The model as the server names it; the requested one where it does not."""
    model_version: str | None
    """Version of the weights or the backend, where the server reports it."""
    raw: bytes
    """The body as received. Had it a secret, that is redacted, and everything that spells it by tokens left out."""
    request: bytes
    """The body as asked, images as `media://<sha256>` (see `request.py`)."""
    request_digest: str
    """SHA-256 of `request`."""
    sent_digest: str
    """SHA-256 of the bytes that went over the wire, images within."""
    queued_s: float
    """Seconds until a connection of the pool was free."""
    latency_s: float
    """Seconds from sending the request to the last byte of the reply."""
    normalization_error: str | None = None
    """Problem of an answer that is not of the API's form, though the call was completed. `content` has its content as
    it came, its tokens are kept, and no protocol may act upon it."""
    routed_experts: list[Any] | str | None = None
    """The experts that each token was routed to, as the server gave it."""

    def tokens(self, which: str) -> int | None:
        """`prompt` or `completion` tokens as the server counted them."""
        found = self.usage.get(f"{which}_tokens")
        return found if type(found) is int and 0 <= found <= LARGEST_COUNT else None


@dataclass(frozen=True)
class Asked:
    """The request that a reply answers."""

    model: str
    kept: bytes
    digest: str
    sent_digest: str
    max_output_tokens: int | None = None


def read_reply(raw: bytes, asked: Asked, queued_s: float, latency_s: float) -> ChatReply:
    """Take a 200 apart. Raises TransportFailed for what is not a chat completion, or the error that it reports.

    Nothing else is raised, and the error keeps the whole body. One choice makes a completed call, of whatever form.
    """
    try:
        return _read(raw, asked, queued_s, latency_s)
    except CallError:
        raise
    except Exception as error:  # an unforeseen form: a failed call, or it would be repeated for ever
        said = redact_head(f"{type(error).__name__}: {error}", 300)
        raise TransportFailed(f"the reply cannot be read ({said})", status=200, body=raw) from error


def _read(raw: bytes, asked: Asked, queued_s: float, latency_s: float) -> ChatReply:
    """Everything is read after redaction, so that what is kept and what is acted upon are the same."""
    received = _document(raw)
    reply = redact_value(received)
    withheld = reply != received or redact_bytes(asked.kept) != asked.kept
    if withheld:
        reply = sanitize(without_tokens(reply))
        raw = json.dumps(reply, ensure_ascii=False).encode()
    _check_failure(reply, raw, asked)
    choice = _choice(reply, raw)
    _check_failure(choice, raw, asked)
    if (finish := choice.get("finish_reason")) in FAILED_GENERATIONS:
        said = f"the server reports that the generation failed (finish_reason {finish!r})"
        raise TransportFailed(said, status=200, body=raw)
    message, problem = _message(choice)
    _check_failure(message, raw, asked)
    tool_calls = message.get("tool_calls")
    calls = [call for call in tool_calls if isinstance(call, dict)] if isinstance(tool_calls, list) else []
    content, unlike_text = _content(message.get("content"), calls)
    evidence = WITHHELD if withheld else token_evidence(reply, choice)
    return ChatReply(
        content=content,
        reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")),
        tool_calls=calls,
        finish_reason=_text(choice.get("finish_reason")),
        prompt_token_ids=evidence.prompt_token_ids,
        sampled_token_ids=evidence.sampled_token_ids,
        sampled_logprobs=evidence.sampled_logprobs,
        token_evidence_problems=evidence.problems,
        usage=reply["usage"] if isinstance(reply.get("usage"), dict) else {},
        model_name=_text(reply.get("model")) or asked.model,
        model_version=_version(reply, choice),
        raw=raw,
        request=asked.kept,
        request_digest=asked.digest,
        sent_digest=asked.sent_digest,
        queued_s=queued_s,
        latency_s=latency_s,
        normalization_error=problem or unlike_text,
        routed_experts=evidence.routed_experts,
    )


def _check_failure(part: dict[str, Any], raw: bytes, asked: Asked) -> None:
    """Raise the failure that a gateway reports with status 200: beside the choices, in the choice, in its message.

    Text and tool calls next to it are half an answer: no one may act upon them.
    """
    error = part.get("error")
    if not error:
        return
    said = json.dumps({"error": error}).encode()
    failure = refusal(_status_within(error, said), said, {}, asked.max_output_tokens, asked.model)
    failure.body = redact_bytes(raw)
    raise failure


def _document(raw: bytes) -> dict[str, Any]:
    try:
        found = read_json(raw)
    except ValueError as error:
        raise TransportFailed(f"the reply is not JSON ({error}): {complaint(raw)}", status=200, body=raw) from None
    if not isinstance(found, dict):
        raise TransportFailed(f"the reply is not a chat completion: {complaint(raw)}", status=200, body=raw)
    return found


def _choice(reply: dict[str, Any], raw: bytes) -> dict[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        found = f"{len(choices)} choices" if isinstance(choices, list) else "no choices"
        raise TransportFailed(f"the reply has {found} where one was asked for: {complaint(raw)}", status=200, body=raw)
    return choices[0] if isinstance(choices[0], dict) else {"message": choices[0]}


def _message(choice: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The message, and what is wrong with its form. What is not a message is kept as the content of one."""
    message = choice.get("message")
    if isinstance(message, dict):
        return message, None
    return {"content": message}, f"the choice's message is {_kind(message)}, not an object"


def _content(value: Any, tool_calls: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    """The content, and what is wrong with its form: what is not text is kept as JSON, unless there are tool calls."""
    if value is None or isinstance(value, str | list):
        return _text(value), None
    if tool_calls:
        return None, None
    return canonical_json(value), f"the message's content is {_kind(value)}, not text"


def _kind(value: Any) -> str:
    kinds = {type(None): "missing", str: "a text", list: "an array", dict: "an object", bool: "a truth value"}
    return kinds.get(type(value), "a number")


def _version(reply: dict[str, Any], choice: dict[str, Any]) -> str | None:
    meta = choice.get("meta_info")
    version = reply.get("system_fingerprint") or (meta.get("weight_version") if isinstance(meta, dict) else None)
    return str(version) if isinstance(version, str | int | float) else None


def _status_within(error: Any, said: bytes) -> int:
    """The HTTP status that the error names, by number or by name; 500, which may be repeated, where it names none."""
    fields = error if isinstance(error, dict) else {}
    for name in (fields.get(key) for key in ("code", "status", "status_code", "type")):
        number = _number(name) if isinstance(name, str) else name
        if type(number) is int and 400 <= number < 600:
            return number
        if isinstance(name, str) and name.lower() in ERROR_NAMES:
            return ERROR_NAMES[name.lower()]
    return 400 if OVERFLOW.search(complaint(said)) else 500


def _text(value: Any) -> str | None:
    """Text, or the text parts of a list of parts."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else None
