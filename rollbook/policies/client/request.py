"""A request: one chat completion, its images by reference, and the correlation headers it travels with.

The body exists in two forms. The one that is kept has `media://<sha256>` in place of every image; the one that is sent
has `data:` URLs instead, and nothing else differs. Both are serialised alike (insertion order, no white space), so the
kept form and the images reproduce what was sent byte for byte.

Correlation headers name the rollout, step and parse attempt of a request, for the logs of the server. They never enter
the model's body.
"""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from rollbook.errors import InvalidInput
from rollbook.policies.client.profile import ApiStyle

OWN_PREFIX = "x-rollbook-"
UPSTREAM_PREFIX = "x-nemo-gym-log-"

UPSTREAM_FIELDS = frozenset(
    [
        "run_id",
        "adapter",
        "rollout_purpose",
        "sampling_event_id",
        "source_group_id",
        "execution_id",
        "rollout_id",
        "group_id",
        "rollout_index",
        "attempt_index",
        "task_id",
        "domain",
        "task_attempt",
        "step",
        "parse_attempt",
        "agent_contract_id",
        "history_policy_id",
        "model_protocol_id",
    ]
)
"""Fields that NeMo Gym sends too, under its own prefix."""

VALUE_LIMIT = 1024
_BREAKS = re.compile(r"[\r\n]+")
_NAME = re.compile(r"[^A-Za-z0-9-]+")


def header_value(value: object) -> str:
    """The value as a header may carry it: no line breaks or control characters, ASCII, at most 1,024 characters.

    What is not printable ASCII is percent-encoded.
    """
    text = _BREAKS.sub("", str(value)).strip()
    safe = "".join(c if c.isascii() and c.isprintable() else quote(c, safe="", errors="replace") for c in text)
    return safe[:VALUE_LIMIT]


def correlation_headers(fields: Mapping[str, object]) -> dict[str, str]:
    """`x-rollbook-<field>` for every field that has a value, and upstream's header where it knows the field."""
    headers: dict[str, str] = {}
    for key, value in fields.items():
        text = "" if value is None else header_value(value)
        name = _NAME.sub("-", key).strip("-").lower()
        if not text or not name:
            continue
        headers[OWN_PREFIX + name] = text
        if key in UPSTREAM_FIELDS:
            headers[UPSTREAM_PREFIX + name] = text
    return headers


MEDIA_SCHEME = "media://"

OWNED = frozenset(
    [
        "model",
        "messages",
        "tools",
        "tool_choice",
        "stream",
        "stream_options",
        "n",
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "seed",
        "stop",
        "logprobs",
        "return_token_ids",
        "return_prompt_token_ids",
        "return_meta_info",
    ]
)
"""Fields of the body that `Sampling.extra` may not set: other settings do, or the client cannot do without them."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of a reply. None leaves a choice to the server."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the body, for instance `{"top_k": 20}`; see `OWNED` for those it may not hold."""


@dataclass(frozen=True)
class ChatRequest:
    """One call."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    """OpenAI chat messages; images as `{"type": "image_url", "image_url": {"url": "media://<sha256>"}}`."""
    media: Mapping[str, bytes] = field(default_factory=dict)
    """The images by SHA-256; more than the messages name does no harm."""
    tools: Sequence[Mapping[str, Any]] | None = None
    sampling: Sampling = Sampling()
    timeout_s: float = 300.0
    """Deadline of the call, from the moment a connection of the pool is free for it."""
    queue_s: float | None = None
    """Longest wait for a free connection; None waits for ever."""
    correlation: Mapping[str, object] = field(default_factory=dict)
    """Field name → value, sent as headers (`correlation_headers`)."""


def media_url(sha256: str) -> str:
    """The reference to an image in a kept body."""
    return MEDIA_SCHEME + sha256


def request_body(request: ChatRequest, api: ApiStyle) -> dict[str, Any]:
    """The body with images by reference. Raises InvalidInput when `sampling.extra` sets what it may not."""
    sampling = request.sampling
    if taken := sorted(OWNED & set(sampling.extra)):
        raise InvalidInput(f"sampling.extra: {', '.join(taken)} cannot be set here")
    limit = "max_completion_tokens" if api == "openai" else "max_tokens"
    chosen = {
        "tools": [dict(tool) for tool in request.tools] if request.tools else None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        limit: sampling.max_output_tokens,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
    body: dict[str, Any] = {"model": request.model, "messages": [dict(message) for message in request.messages]}
    body |= {name: value for name, value in chosen.items() if value is not None}
    return body | dict(sampling.extra) | {"stream": False} | token_fields(api)


def token_fields(api: ApiStyle) -> dict[str, Any]:
    """Members of the body that ask a server of this kind for token ids and log probabilities."""
    if api == "vllm":
        return {"logprobs": True, "return_token_ids": True}
    if api == "sglang":
        return {"logprobs": True, "return_prompt_token_ids": True, "return_meta_info": True}
    return {}


def serialise(body: Mapping[str, Any]) -> bytes:
    """The one serialisation of bodies. Raises InvalidInput for what JSON cannot hold."""
    try:
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:  # NaN, bytes, lone surrogates
        raise InvalidInput(f"request: {error}") from error


def digest_of(kept: bytes) -> str:
    """`request_digest`: SHA-256 of the kept form."""
    return hashlib.sha256(kept).hexdigest()


def with_media(body: Mapping[str, Any], media: Mapping[str, bytes]) -> dict[str, Any]:
    """The body that is sent. Raises InvalidInput for an image that is missing or has another digest."""
    urls: dict[str, str] = {}
    messages = [{**message, "content": _content(message.get("content"), media, urls)} for message in body["messages"]]
    return {**body, "messages": messages}


def _content(content: Any, media: Mapping[str, bytes], urls: dict[str, str]) -> Any:
    return [_part(part, media, urls) for part in content] if isinstance(content, list) else content


def _part(part: Any, media: Mapping[str, bytes], urls: dict[str, str]) -> Any:
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return part
    url = part["image_url"]["url"]
    if not url.startswith(MEDIA_SCHEME):
        return part
    sha256 = url.removeprefix(MEDIA_SCHEME)
    if sha256 not in urls:
        urls[sha256] = _data_url(sha256, media)
    return {**part, "image_url": {**part["image_url"], "url": urls[sha256]}}


def _data_url(sha256: str, media: Mapping[str, bytes]) -> str:
    data = media.get(sha256)
    if data is None:
        raise InvalidInput(f"media: the image {sha256} is in the messages but was not given")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InvalidInput(f"media: the image under {sha256} has another digest")
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return f"data:{media_type};base64,{b64encode(data).decode()}"
    raise InvalidInput(f"media: {sha256} is neither PNG, JPEG, GIF nor WebP")
