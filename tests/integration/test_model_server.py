"""The double itself: an HTTP client without Rollbook code sees a deterministic OpenAI-compatible server."""

import base64
import io
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.doubles.model_server import ModelServer, Reply, Script
from tests.doubles.model_tokens import ids_of, image_tokens, text_of

ASK = {
    "model": "double-vl",
    "messages": [{"role": "user", "content": "go"}],
    "logprobs": True,
    "return_token_ids": True,
}


async def post(server: ModelServer, body: dict[str, Any], **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{server.url}/chat/completions", json=body, headers=headers)


def picture(width: int, height: int) -> dict[str, Any]:
    target = io.BytesIO()
    Image.new("RGB", (width, height)).save(target, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(target.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def test_the_vocabulary_is_a_real_one() -> None:
    assert ids_of("he") + ids_of("llo") != ids_of("hello")
    assert text_of(ids_of("he") + ids_of("llo")) == "hello"
    assert len(ids_of("<|im_start|>")) == len(ids_of("<|image_pad|>")) == 1


async def test_the_same_request_has_the_same_reply() -> None:
    bodies = []
    for _ in range(2):
        async with ModelServer(["Grüße, 世界"]) as server:
            bodies.append((await post(server, ASK)).content)
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"a": ["a1", "a2"], "*": ["other"]}, ["a1", "a2", "a2", "other"]),
        (["1", "2", Reply("3")], ["1", "2", "3", "3"]),
        (lambda call: f"{call.task}/{call.step}", ["a/1", "a/2", "a/3", "b/1"]),
    ],
)
async def test_scripts(script: Script, said: list[str]) -> None:
    async with ModelServer(script) as server:
        answers = [
            await post(server, ASK, **{"x-rollbook-task-id": task, "x-rollbook-step": step})
            for task, step in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"))
        ]
    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == said


async def test_images_are_decoded_and_take_tokens() -> None:
    body = {**ASK, "messages": [{"role": "user", "content": [picture(640, 320), {"type": "text", "text": "go"}]}]}
    async with ModelServer(["x"]) as server:
        with_image, without = (await post(server, body)).json(), (await post(server, ASK)).json()
        refused = await post(server, {**body, "messages": [{"role": "user", "content": [_broken(picture(64, 64))]}]})
    assert (server.calls[0].pictures[0].width, server.calls[0].pictures[0].height) == (640, 320)
    grown = len(with_image["prompt_token_ids"]) - len(without["prompt_token_ids"])
    assert grown == image_tokens(640, 320) + 2
    assert refused.status_code == 400


def _broken(part: dict[str, Any]) -> dict[str, Any]:
    url = part["image_url"]["url"]
    return {**part, "image_url": {"url": url[: len(url) // 2 // 4 * 4 - 2]}}


async def test_the_list_of_models_needs_the_key_too() -> None:
    async with ModelServer(["x"], api_key="k") as server, httpx.AsyncClient() as client:
        assert (await client.get(f"{server.url}/models")).status_code == 401
        answer = await client.get(f"{server.url}/models", headers={"authorization": "Bearer k"})
    assert [entry["id"] for entry in answer.json()["data"]] == ["double-vl"]
