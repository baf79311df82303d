"""The client against a real HTTP server: replies, token evidence, every way to fail, pools and deadlines."""

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from PIL import Image
from pydantic import SecretStr

from rollbook.errors import ModelTimeout
from rollbook.policies.client import (
    AuthFailed,
    BadRequest,
    ChatReply,
    ChatRequest,
    ContextOverflow,
    EndpointProfile,
    ModelClient,
    RateLimited,
    Sampling,
    TransportFailed,
    media_url,
)
from rollbook.policies.client.probe import probe
from rollbook.policies.client.request import serialise, with_media
from tests.doubles.model_server import Call, Fault, ModelServer, Reply
from tests.doubles.model_tokens import ids_of, text_of

KEY = 'odd"key\\with/+=&%20'


def png(width: int, height: int, colour: str = "red") -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(target, "PNG")
    return target.getvalue()


def asks(*pictures: bytes, text: str = "go", **changes: Any) -> ChatRequest:
    media = {hashlib.sha256(picture).hexdigest(): picture for picture in pictures}
    content = [{"type": "image_url", "image_url": {"url": media_url(sha256)}} for sha256 in media]
    messages = [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]
    return ChatRequest("double-vl", messages, media, **changes)


@asynccontextmanager
async def client_of(server: ModelServer, **changes: Any) -> AsyncIterator[ModelClient]:
    fields = {"name": "test", "base_url": server.url, "api": server.style, "api_key": SecretStr(KEY)}
    client = ModelClient(EndpointProfile.model_validate(fields | changes))
    try:
        yield client
    finally:
        await client.close()


async def one(server: ModelServer, request: ChatRequest | None = None, **changes: Any) -> ChatReply:
    async with client_of(server, **changes) as client:
        return await client.chat(request or asks())


# --- replies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["vllm", "sglang"])
async def test_a_reply_with_complete_token_evidence(style: Any) -> None:
    async with ModelServer([Reply("click", reasoning="hm")], style=style, api_key=KEY) as server:
        reply = await one(server, asks(png(64, 64), png(320, 96)))
    call = server.calls[0]
    assert (reply.content, reply.reasoning, reply.finish_reason) == ("click", "hm", "stop")
    assert reply.token_evidence_problems == ()
    assert reply.prompt_token_ids == call.prompt_ids
    assert reply.sampled_token_ids == ids_of("<think>\nhm\n</think>\n\nclick<|im_end|>")
    assert reply.sampled_logprobs is not None
    assert len(reply.sampled_logprobs) == len(reply.sampled_token_ids)
    assert reply.tokens("prompt") == len(call.prompt_ids)
    assert json.loads(reply.raw)["model"] == reply.model_name == "double-vl"


async def test_sampled_ids_are_those_that_were_sampled_not_those_of_the_text() -> None:
    async with ModelServer([Reply(pieces=["he", "llo"])], api_key=KEY) as server:
        reply = await one(server)
    assert reply.content == "hello"
    assert reply.sampled_token_ids == ids_of("he") + ids_of("llo") + ids_of("<|im_end|>")
    assert reply.sampled_token_ids != ids_of("hello<|im_end|>")
    assert text_of(reply.sampled_token_ids) == "hello"


async def test_what_was_sent_is_reproduced_byte_for_byte_from_what_is_kept() -> None:
    request = asks(
        png(64, 64), png(96, 64), sampling=Sampling(temperature=0.6, top_p=0.95, max_output_tokens=50, seed=3)
    )
    async with ModelServer(["x"], api_key=KEY) as server:
        reply = await one(server, request)
    raw = server.calls[0].raw
    assert serialise(with_media(json.loads(reply.request), request.media)) == raw
    assert hashlib.sha256(raw).hexdigest() == reply.sent_digest
    assert hashlib.sha256(reply.request).hexdigest() == reply.request_digest
    assert [picture.data for picture in server.calls[0].pictures] == list(request.media.values())
    assert b"data:" not in reply.request


async def test_tool_calls_come_through() -> None:
    tool = {"type": "function", "function": {"name": "computer", "parameters": {"type": "object"}}}
    script = [Reply(tool_calls=[{"name": "computer", "arguments": {"action": "click", "x": 1}}])]
    async with ModelServer(script, api_key=KEY) as server:
        reply = await one(server, asks(tools=[tool]))
    assert reply.finish_reason == "tool_calls"
    assert reply.content is None
    assert json.loads(reply.tool_calls[0]["function"]["arguments"]) == {"action": "click", "x": 1}
    assert server.calls[0].body["tools"] == [tool]


async def test_an_endpoint_without_extensions_gives_no_token_evidence() -> None:
    async with ModelServer(["x"], style="openai", api_key=KEY) as server:
        reply = await one(server, asks(sampling=Sampling(max_output_tokens=9)))
    assert reply.prompt_token_ids is reply.sampled_token_ids is reply.sampled_logprobs is None
    assert reply.token_evidence_problems == (
        "exact_prompt_token_ids_unavailable",
        "exact_sampled_token_ids_unavailable",
        "exact_sampled_logprobs_unavailable",
    )
    assert server.calls[0].body["max_completion_tokens"] == 9


async def test_truncated_and_empty_replies_are_completed_calls() -> None:
    async with (
        ModelServer([Reply("a long reply of many words", fault="truncated"), Reply("x", fault="empty")]) as server,
        client_of(server) as client,
    ):
        cut, empty = await client.chat(asks()), await client.chat(asks())
    assert cut.finish_reason == "length"
    assert cut.content
    assert "a long reply of many words".startswith(cut.content)
    assert cut.content != "a long reply of many words"
    assert cut.token_evidence_problems == ()
    assert (empty.content, empty.finish_reason) == ("", "stop")


async def test_the_servers_own_limit_truncates_too() -> None:
    async with ModelServer(["one two three four"]) as server:
        reply = await one(server, asks(sampling=Sampling(max_output_tokens=2)))
    assert (reply.finish_reason, len(reply.sampled_token_ids or [])) == ("length", 2)


async def test_correlation_goes_into_headers_never_into_the_body() -> None:
    fields = {"task_id": "t\r\nX-Evil: 1", "step": 4, "rollout_key": "b/os/ä/0", "execution_id": "e" * 2000}
    async with ModelServer({"*": ["1", "2", "3", "four"]}) as server:
        reply = await one(server, asks(correlation=fields))
    headers = server.calls[0].headers
    assert reply.content == "four"
    assert headers["x-rollbook-task-id"] == headers["x-nemo-gym-log-task-id"] == "tX-Evil: 1"
    assert headers["x-rollbook-rollout-key"] == "b/os/%C3%A4/0"
    assert len(headers["x-rollbook-execution-id"]) == 1024
    assert "x-evil" not in headers
    assert b"rollbook" not in server.calls[0].raw


# --- wrong token evidence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("short_ids", "exact_sampled_token_ids_invalid"),
        ("boolean_ids", "exact_sampled_token_ids_invalid"),
        ("negative_ids", "exact_sampled_token_ids_invalid"),
        ("nan_logprobs", "exact_sampled_logprobs_invalid"),
    ],
)
async def test_wrong_evidence_never_passes(style: Any, fault: Fault, problem: str) -> None:
    async with ModelServer([Reply("some words", fault=fault)], style=style) as server:
        reply = await one(server)
    assert reply.content == "some words"
    assert reply.token_evidence_problems[0] == problem


async def test_a_missing_logprob_is_a_length_mismatch() -> None:
    async with ModelServer([Reply("some words", fault="missing_logprob")]) as server:
        reply = await one(server)
    assert reply.token_evidence_problems


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("rate_limited", RateLimited),
        ("overloaded", RateLimited),
        ("context_vllm", ContextOverflow),
        ("context_openai", ContextOverflow),
        ("unauthorized", AuthFailed),
        ("bad_request", BadRequest),
        ("not_found", BadRequest),
        ("server_error", TransportFailed),
        ("error_within_200", TransportFailed),
        ("no_json", TransportFailed),
        ("no_choices", TransportFailed),
        ("cut", TransportFailed),
        ("reset", TransportFailed),
        ("abort", TransportFailed),
        ("foreign_call", TransportFailed),
    ],
)
async def test_each_fault_has_its_type_and_the_next_call_works(fault: Fault, kind: type[Exception]) -> None:
    async with ModelServer([Reply("x", fault=fault), Reply("fine")]) as server, client_of(server) as client:
        with pytest.raises(kind) as error:
            await client.chat(asks(correlation={"step": 1, "execution_id": "e"}))
        assert type(error.value) is kind
        assert len(server.calls) == 1  # nothing is repeated in the client
        assert (await client.chat(asks())).content == "fine"


@pytest.mark.parametrize(
    ("fault", "kept"),
    [("cut", b'"content": "pyautogui.cl'), ("foreign_call", b'"content": "x"'), ("abort", b'"abort"')],
)
async def test_what_came_of_a_failed_call_is_kept(fault: Fault, kept: bytes) -> None:
    async with ModelServer([Reply("x", fault=fault)]) as server:
        with pytest.raises(TransportFailed) as error:
            await one(server, asks(correlation={"step": 1, "execution_id": "e"}))
    assert kept in error.value.body


async def test_a_reply_without_end_is_read_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.policies.client.client.LARGEST_REPLY", 100_000)
    async with ModelServer([Reply(body=b"x" * 1_000_000)]) as server:
        with pytest.raises(TransportFailed, match="longer than 100000 bytes") as error:
            await one(server)
    assert error.value.body == b"x" * 100_000


async def test_the_servers_wish_when_to_come_back() -> None:
    async with ModelServer([Reply("x", fault="rate_limited", retry_after="7")]) as server:
        with pytest.raises(RateLimited) as error:
            await one(server)
    assert (error.value.retry_after_s, error.value.status) == (7.0, 429)


async def test_a_prompt_beyond_the_context_is_refused_by_counting() -> None:
    async with ModelServer(["x"], context=40) as server:
        with pytest.raises(ContextOverflow):
            await one(server, asks(png(640, 480)))
        assert (await one(server, asks(png(32, 32)))).content == "x"


async def test_a_wrong_key_is_named_but_not_shown() -> None:
    async with ModelServer(["x"], api_key="another") as server:
        with pytest.raises(AuthFailed) as error:
            await one(server)
    assert server.refused_keys == 1
    assert KEY not in str(error.value)
    assert KEY.encode() not in error.value.body
    assert b"Incorrect API key provided" in error.value.body


async def test_nobody_listens() -> None:
    async with ModelServer(["x"]) as server:
        pass
    with pytest.raises(TransportFailed, match=server.url):
        await one(server)


async def test_a_slow_reply_meets_the_deadline_and_frees_its_slot() -> None:
    async with (
        ModelServer([Reply("x", fault="slow"), Reply("fine")]) as server,
        client_of(server, max_connections=1) as client,
    ):
        with pytest.raises(ModelTimeout, match=r"within 0\.2 s"):
            await client.chat(asks(timeout_s=0.2))
        assert (await client.chat(asks())).content == "fine"


async def test_cancelling_a_call_frees_its_slot() -> None:
    arrived = asyncio.Event()

    def script(call: Call) -> Reply:
        arrived.set()
        return Reply("fine", fault="slow" if call.number == 0 else None)

    async with ModelServer(script) as server, client_of(server, max_connections=1) as client:
        call = asyncio.create_task(client.chat(asks()))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await client.chat(asks())).content == "fine"


# --- pools --------------------------------------------------------------------------------------------------


async def test_no_more_calls_at_once_than_the_profile_allows() -> None:
    def slowly(call: Call) -> Reply:
        return Reply(str(call.number), delay_s=0.05)

    async with ModelServer(slowly) as server, client_of(server, max_connections=3) as client:
        replies = await asyncio.gather(*(client.chat(asks()) for _ in range(12)))
    assert sorted(int(reply.content or "") for reply in replies) == list(range(12))
    assert server.most_open == 3
    assert max(reply.queued_s for reply in replies) > min(reply.queued_s for reply in replies)


async def test_waiting_for_a_slot_is_not_part_of_the_deadline() -> None:
    async with (
        ModelServer([Reply("x", delay_s=0.5)]) as server,
        client_of(server, max_connections=1) as client,
    ):
        replies = await asyncio.gather(*(client.chat(asks(timeout_s=1.5)) for _ in range(5)))
    assert [reply.content for reply in replies] == ["x"] * 5


# --- the probe ----------------------------------------------------------------------------------------------


def profile_of(server: ModelServer, api: str = "vllm") -> EndpointProfile:
    return EndpointProfile.model_validate({"name": "p", "base_url": server.url, "api": api})


async def test_probe_of_a_fit_endpoint() -> None:
    async with ModelServer(["red"]) as server:
        report = await probe(profile_of(server))
    assert report.ok
    assert report.models == ["double-vl"]
    assert report.token_evidence == {"vllm": []}
    assert [len(call.pictures) for call in server.calls] == [1, 3]
    assert not report.advice


async def test_probe_finds_the_way_to_token_evidence() -> None:
    async with ModelServer(["red"], style="sglang") as server:
        report = await probe(profile_of(server))
    assert report.ok
    assert report.token_evidence["sglang"] == []
    assert any("api = 'sglang'" in line for line in report.advice)


async def test_probe_of_an_endpoint_that_takes_one_image() -> None:
    async with ModelServer(["red"], max_images=1) as server:
        report = await probe(profile_of(server))
    assert [check.ok for check in report.checks] == [True, True, False]
    assert any("one image is accepted and three are not" in line for line in report.advice)


async def test_probe_of_an_endpoint_with_other_manners() -> None:
    async with ModelServer(["red"], style="openai") as server:
        report = await probe(profile_of(server))
        assert not report.ok
        assert any("api = 'openai'" in line for line in report.advice)
        assert (await probe(profile_of(server, "openai"))).ok


async def test_probe_of_nothing() -> None:
    async with ModelServer(["red"]) as server:
        pass
    report = await probe(profile_of(server))
    assert not report.ok
    assert server.url in report.checks[0].said
