"""Failures of the model server on demand, with the messages of real servers."""

import asyncio
import math
from typing import Any

from aiohttp import web

OPENAI_FIELDS = frozenset(
    [
        "model",
        "messages",
        "stream",
        "temperature",
        "top_p",
        "max_completion_tokens",
        "seed",
        "stop",
        "tools",
        "logprobs",
    ]
)


def error(status: int, message: str, *, code: str | None = None, headers: dict[str, str] | None = None) -> web.Response:
    """An error in OpenAI's shape."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return web.json_response(body, status=status, headers=headers)


def context_vllm(context: int, prompt: int, wanted: int) -> web.Response:
    """A prompt that does not fit, as vLLM says it: no code, its own shape."""
    message = (
        f"This model's maximum context length is {context} tokens. However, you requested {wanted} output tokens and "
        f"your prompt contains at least {prompt} input tokens, for a total of at least {prompt + wanted} tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens."
    )
    return web.json_response(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}, status=400
    )


def context_openai(context: int, prompt: int) -> web.Response:
    """The same as OpenAI says it: a code."""
    message = f"Your input of {prompt} tokens does not fit into {context}."
    return error(400, message, code="context_length_exceeded")


async def instead(
    request: web.Request, fault: str | None, retry_after: str | None, prompt: int
) -> web.StreamResponse | None:
    """The answer of a fault that takes the reply's place; None for the others."""
    later = {"Retry-After": retry_after} if retry_after is not None else None
    answers = {
        "rate_limited": lambda: error(429, "Rate limit reached for requests", headers=later),
        "overloaded": lambda: error(503, "The server is overloaded", headers=later),
        "context_vllm": lambda: context_vllm(max(prompt, 1), prompt, 1),
        "context_openai": lambda: context_openai(max(prompt - 1, 1), prompt),
        "unauthorized": lambda: error(401, "Incorrect API key provided", code="invalid_api_key"),
        "bad_request": lambda: error(400, "temperature must be non-negative"),
        "not_found": lambda: error(404, "Not Found"),
        "too_large": lambda: web.Response(status=413, text="<html>Request Entity Too Large</html>"),
        "server_error": lambda: error(500, "EngineCore encountered an issue"),
        "error_within_200": lambda: web.json_response({"error": {"message": "Provider returned error", "code": 502}}),
        "no_json": lambda: web.Response(text="<html>welcome</html>"),
        "no_choices": lambda: web.json_response({"object": "chat.completion", "choices": []}),
    }
    if fault in answers:
        return answers[fault]()
    if fault == "slow":
        await asyncio.sleep(60)
    if fault == "cut":
        return await _cut(request)
    if fault == "reset":
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
    return None


async def _cut(request: web.Request) -> web.StreamResponse:
    """Half a reply, then a broken connection."""
    answer = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await answer.prepare(request)
    await answer.write(b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "pyautogui.cl')
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return answer


def spoil(fault: str | None, ids: list[int], numbers: list[Any]) -> tuple[list[Any], list[Any]]:
    """Wrong token evidence."""
    if fault == "short_ids":
        return ids[:-1], numbers
    if fault == "boolean_ids":
        return [True, *ids[1:]], numbers
    if fault == "negative_ids":
        return [-1, *ids[1:]], numbers
    if fault == "nan_logprobs":
        return ids, [math.nan, *numbers[1:]]
    if fault == "missing_logprob":
        return ids, numbers[:-1]
    return ids, numbers
