"""A model server: real HTTP, the OpenAI chat-completions API with vLLM's or SGLang's extensions, replies from a script.

Token ids are real (`model_tokens.py`); log probabilities are made up but always the same. It cannot prove that a model
understands a prompt, nor how a real server batches, truncates or fails under load.

    async with ModelServer({"task-1": ["first reply", Reply("second")], "*": [Reply("for all others")]}) as server:
        ...  # server.url ends in /v1; server.calls holds what came

A script is a mapping from task id to replies by step (the last one is repeated; `*` stands for any task), a list of
replies in the order of the calls, or a function from `Call` to a reply. Task and step come from correlation headers.
"""

import asyncio
import base64
import io
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, Self

from aiohttp import web
from PIL import Image

from tests.doubles import model_faults as faults
from tests.doubles.model_tokens import call_text, ids_of, logprob, prompt_ids, text_of, tokenizer

Fault = Literal[
    "rate_limited",
    "overloaded",
    "context_vllm",
    "context_openai",
    "unauthorized",
    "bad_request",
    "not_found",
    "too_large",
    "server_error",
    "error_within_200",
    "no_json",
    "no_choices",
    "cut",
    "reset",
    "slow",
    "truncated",
    "empty",
    "abort",
    "foreign_call",
    "short_ids",
    "boolean_ids",
    "negative_ids",
    "nan_logprobs",
    "missing_logprob",
]


@dataclass(frozen=True)
class Picture:
    """An image of a request, decoded."""

    data: bytes
    sha256: str
    width: int
    height: int


@dataclass(frozen=True)
class Call:
    """One request."""

    number: int
    """From 0, over the life of the server."""
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes
    pictures: list[Picture]
    prompt_ids: list[int]

    @property
    def task(self) -> str:
        """Task id of the correlation headers; empty without."""
        return self.headers.get("x-rollbook-task-id", "")

    @property
    def step(self) -> int:
        """Step of the correlation headers, from 1; 0 without."""
        return int(self.headers.get("x-rollbook-step", "0"))

    @property
    def parse_attempt(self) -> int:
        """Parse attempt of the correlation headers, from 1."""
        return int(self.headers.get("x-rollbook-parse-attempt", "1"))


@dataclass(frozen=True)
class Reply:
    """The model's answer, or its failure."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """`{"name": …, "arguments": {…}}`."""
    pieces: Sequence[str] | None = None
    """The content, sampled in these pieces: token ids that the tokenizer itself would not choose for the text."""
    body: bytes | None = None
    """The whole answer, sent as it is with status 200."""
    fault: Fault | None = None
    retry_after: str | None = "2"
    delay_s: float = 0.0


Said = Reply | str
Script = Callable[[Call], Said | Awaitable[Said]] | Mapping[str, Sequence[Said]] | Sequence[Said]


@dataclass
class ModelServer:
    """Listens while entered."""

    script: Script
    model: str = "double-vl"
    api_key: str | None = None
    style: Literal["vllm", "sglang", "openai"] = "vllm"
    """Which extensions it knows. `openai` refuses unknown fields, the others overlook them."""
    context: int = 1_000_000
    """Tokens that prompt and reply may have together; more is refused in vLLM's words."""
    max_images: int | None = None
    port: int = 0
    models_need_key: bool = True
    """False: its list of models is open to everybody, as some gateways' is."""
    calls: list[Call] = field(default_factory=list)
    refused_keys: int = 0
    open_calls: int = 0
    most_open: int = 0
    """The most calls that were open at once."""

    @property
    def url(self) -> str:
        """Base URL for an endpoint profile."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = int(self._runner.addresses[0][1])
        await asyncio.to_thread(tokenizer)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if self.models_need_key and (refusal := self._refuse_key(request)):
            return refusal
        return web.json_response(
            {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "test"}]}
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refuse_key(request):
            return refusal
        self.open_calls += 1
        self.most_open = max(self.most_open, self.open_calls)
        try:
            return await self._complete(request)
        finally:
            self.open_calls -= 1

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        try:
            pictures = [_picture(url) for url in _image_urls(body["messages"])]
        except (ValueError, OSError) as error:
            return faults.error(400, f"Invalid image: {error}")
        sizes = [(picture.width, picture.height) for picture in pictures]
        ids = await asyncio.to_thread(prompt_ids, body["messages"], body.get("tools"), sizes)
        call = Call(len(self.calls), _lowered(request.headers), body, raw, pictures, ids)
        self.calls.append(call)
        if refusal := self._refuse_body(call):
            return refusal
        reply = await self._said(call)
        await asyncio.sleep(reply.delay_s)
        if (answer := await faults.instead(request, reply.fault, reply.retry_after, len(ids))) is not None:
            return answer
        document = json.dumps(self._document(call, reply)).encode()  # NaN as Python servers write it
        return web.Response(
            body=document if reply.body is None else reply.body,
            content_type="application/json",
            headers=_echo(call, reply.fault),
        )

    def _refuse_key(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.api_key is None or given == self.api_key:
            return None
        self.refused_keys += 1
        return faults.error(401, f"Incorrect API key provided: {given}.", code="invalid_api_key")

    def _refuse_body(self, call: Call) -> web.Response | None:
        if call.body.get("model") != self.model:
            return faults.error(404, f"The model `{call.body.get('model')}` does not exist.", code="model_not_found")
        if self.style == "openai" and (unknown := sorted(set(call.body) - faults.OPENAI_FIELDS)):
            return faults.error(400, f"Unrecognized request argument supplied: {unknown[0]}")
        if self.max_images is not None and len(call.pictures) > self.max_images:
            return faults.error(400, f"At most {self.max_images} image(s) may be provided in one prompt.")
        wanted = int(call.body.get("max_tokens") or 1)
        if len(call.prompt_ids) + wanted > self.context:
            return faults.context_vllm(self.context, len(call.prompt_ids), wanted)
        return None

    async def _said(self, call: Call) -> Reply:
        if callable(self.script):
            said = self.script(call)
            said = said if isinstance(said, Reply | str) else await said
        elif isinstance(self.script, Mapping):
            replies = self.script.get(call.task) or self.script["*"]
            said = replies[min(max(call.step, 1), len(replies)) - 1]
        else:
            said = self.script[min(call.number, len(self.script) - 1)]
        return Reply(said) if isinstance(said, str) else said

    def _document(self, call: Call, reply: Reply) -> dict[str, Any]:
        ids, message, finish = _generate(reply, call)
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        numbers: list[Any] = [logprob(token, position) for position, token in enumerate(ids)]
        ids, numbers = faults.spoil(reply.fault, ids, numbers)
        document: dict[str, Any] = {
            "id": f"chatcmpl-{call.number}",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": self.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(call.prompt_ids),
                "completion_tokens": len(numbers),
                "total_tokens": len(call.prompt_ids) + len(numbers),
            },
            "system_fingerprint": "double-1",
        }
        if call.body.get("logprobs"):
            choice["logprobs"] = {"content": [_logprob_entry(*pair) for pair in zip(ids, numbers, strict=False)]}
        if self.style == "vllm" and call.body.get("return_token_ids"):
            document["prompt_token_ids"], choice["token_ids"] = call.prompt_ids, ids
        if self.style == "sglang" and call.body.get("return_prompt_token_ids"):
            choice["prompt_token_ids"] = call.prompt_ids
        if self.style == "sglang" and call.body.get("return_meta_info"):
            pairs = [[number, token, None] for token, number in zip(ids, numbers, strict=False)]
            choice["meta_info"] = {"output_token_logprobs": pairs, "weight_version": "w-1"}
        return document


def _generate(reply: Reply, call: Call) -> tuple[list[int], dict[str, Any], str]:
    """Sampled ids (with the end-of-turn token unless cut off), the message, the finish reason."""
    content = "".join(reply.pieces) if reply.pieces is not None else reply.content
    calls = [
        {
            "id": f"call_{call.number}_{position}",
            "type": "function",
            "function": {"name": one["name"], "arguments": json.dumps(one.get("arguments", {}))},
        }
        for position, one in enumerate(reply.tool_calls)
    ]
    if reply.fault == "empty":
        content, calls = "", []
    thought = f"<think>\n{reply.reasoning}\n</think>\n\n" if reply.reasoning else ""
    ids = ids_of(thought)
    for piece in reply.pieces if reply.pieces is not None else [content or ""]:
        ids += ids_of(piece)
    ids += ids_of("".join(call_text(one) for one in calls)) + ids_of("<|im_end|>")
    limit = call.body.get("max_tokens") or call.body.get("max_completion_tokens") or len(ids)
    if reply.fault == "truncated":
        limit = min(limit, max(1, len(ids) // 2))
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reply.reasoning}
    if len(ids) > limit:
        ids = ids[:limit]
        said = text_of(ids).removeprefix("<think>\n")
        before, closed, after = said.partition("\n</think>\n\n")
        cut = {"content": after if closed else "", "reasoning_content": before} if thought else {"content": said}
        return ids, {**message, **cut}, "length"
    if calls:
        return ids, {**message, "tool_calls": calls}, "tool_calls"
    return ids, message, "abort" if reply.fault == "abort" else "stop"


def _logprob_entry(token: Any, number: Any) -> dict[str, Any]:
    text = text_of([token]) if type(token) is int and token >= 0 else ""
    return {"token": text, "logprob": number, "bytes": list(text.encode()), "top_logprobs": []}


def _image_urls(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def _picture(url: str) -> Picture:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise ValueError(f"not a data URL: {url[:60]}")
    raw = base64.b64decode(data, validate=True)
    with Image.open(io.BytesIO(raw)) as image:
        image.load()
        return Picture(raw, sha256(raw).hexdigest(), image.width, image.height)


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _echo(call: Call, fault: str | None) -> dict[str, str]:
    own = {name: value for name, value in call.headers.items() if name.startswith("x-rollbook-")}
    if fault == "foreign_call":
        own |= {name: f"{value}0" for name, value in own.items() if name.endswith(("-step", "-execution-id"))}
    return own
