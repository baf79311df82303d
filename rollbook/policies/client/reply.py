"""What came back: facts only. Whether it parses is the protocol's business, whether it counts the runner's."""

import json
from dataclasses import dataclass
from typing import Any

from rollbook.policies.client.errors import TransportFailed
from rollbook.policies.client.faults import complaint, refusal
from rollbook.policies.client.tokens import WITHHELD, token_evidence, without_tokens
from rollbook.redaction import redact_bytes, redact_value


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
    """Why token evidence is incomplete (closed set of upstream contract §3.1); empty when it is complete."""
    usage: dict[str, Any]
    """`prompt_tokens`, `completion_tokens`, … as the server counted them; empty when it did not."""
    model_name: str
    """The model as the server names it; the requested one where it does not."""
    model_version: str | None
    """Version of the weights or the backend, where the server tells."""
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

    @property
    def token_evidence_problem(self) -> str | None:
        """The first problem, or None."""
        return self.token_evidence_problems[0] if self.token_evidence_problems else None

    def tokens(self, which: str) -> int | None:
        """`prompt` or `completion` tokens as the server counted them."""
        found = self.usage.get(f"{which}_tokens")
        return found if type(found) is int and found >= 0 else None


@dataclass(frozen=True)
class Asked:
    """The request that a reply answers."""

    model: str
    kept: bytes
    digest: str
    sent_digest: str
    max_output_tokens: int | None = None


def read_reply(raw: bytes, asked: Asked, queued_s: float, latency_s: float) -> ChatReply:
    """Take a 200 apart. Raises TransportFailed for what is no chat completion, or the error that it reports.

    Everything is read after redaction, so that what is kept and what is acted upon are the same.
    """
    received = _document(raw)
    reply = redact_value(received)
    withheld = reply != received or redact_bytes(asked.kept) != asked.kept
    if withheld:
        reply = without_tokens(reply)
        raw = json.dumps(reply, ensure_ascii=False).encode(errors="replace")
    if "error" in reply and not reply.get("choices"):  # some gateways report failures with status 200
        raise refusal(_status_within(reply), raw, {}, asked.max_output_tokens)
    choice = _choice(reply, raw)
    if choice.get("finish_reason") == "abort":  # SGLang: the server gave up half way
        raise TransportFailed("the server aborted the generation", status=200, body=raw)
    message: dict[str, Any] = choice["message"]
    evidence = WITHHELD if withheld else token_evidence(reply, choice)
    meta = choice.get("meta_info")
    version = reply.get("system_fingerprint") or (meta.get("weight_version") if isinstance(meta, dict) else None)
    return ChatReply(
        content=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")),
        tool_calls=[call for call in message.get("tool_calls") or [] if isinstance(call, dict)],
        finish_reason=_text(choice.get("finish_reason")),
        prompt_token_ids=evidence.prompt_token_ids,
        sampled_token_ids=evidence.sampled_token_ids,
        sampled_logprobs=evidence.sampled_logprobs,
        token_evidence_problems=evidence.problems,
        usage=reply["usage"] if isinstance(reply.get("usage"), dict) else {},
        model_name=_text(reply.get("model")) or asked.model,
        model_version=None if version is None else str(version),
        raw=raw,
        request=asked.kept,
        request_digest=asked.digest,
        sent_digest=asked.sent_digest,
        queued_s=queued_s,
        latency_s=latency_s,
    )


def _document(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise TransportFailed(f"the reply is not JSON ({error}): {complaint(raw)}", status=200, body=raw) from None
    if not isinstance(found, dict):
        raise TransportFailed(f"the reply is not a chat completion: {complaint(raw)}", status=200, body=raw)
    return found


def _choice(reply: dict[str, Any], raw: bytes) -> dict[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        found = f"{len(choices)} choices" if isinstance(choices, list) else "no choices"
        raise TransportFailed(f"the reply has {found} where one was asked for: {complaint(raw)}", status=200, body=raw)
    choice = choices[0]
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise TransportFailed(f"the reply's choice has no message: {complaint(raw)}", status=200, body=raw)
    return choice


def _status_within(reply: dict[str, Any]) -> int:
    error = reply["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and 400 <= code < 600 else 500


def _text(value: Any) -> str | None:
    """Text, or the text parts of a list of parts."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else None
