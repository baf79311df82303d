"""The client's rules without a socket: bodies, headers, token evidence, refusals."""

import base64
import hashlib
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook import redaction
from rollbook.errors import InvalidInput, ModelCallFailed
from rollbook.policies.client import (
    AuthFailed,
    BadRequest,
    ChatRequest,
    ContextOverflow,
    RateLimited,
    Sampling,
    TransportFailed,
    media_url,
)
from rollbook.policies.client.faults import refusal, retry_after_s
from rollbook.policies.client.reply import Asked, ChatReply, read_reply, token_evidence
from rollbook.policies.client.request import (
    OWNED,
    UPSTREAM_FIELDS,
    correlation_headers,
    digest_of,
    header_value,
    request_body,
    serialise,
    with_media,
)
from rollbook.redaction import SecretRegistry

PNG = b"\x89PNG\r\n\x1a\nrest"
SHA = hashlib.sha256(PNG).hexdigest()


def asks(*parts: dict[str, Any], **changes: Any) -> ChatRequest:
    content = [{"type": "image_url", "image_url": {"url": media_url(SHA), "detail": "high"}}, *parts]
    return ChatRequest("m", [{"role": "user", "content": content}], {SHA: PNG}, **changes)


# --- bodies -------------------------------------------------------------------------------------------------


def test_images_are_replaced_in_the_sent_body_only() -> None:
    trap = {"type": "text", "text": f"the model wrote {media_url(SHA)}"}
    body = request_body(asks(trap), "vllm")
    sent = with_media(body, {SHA: PNG})
    image, text = sent["messages"][0]["content"]
    assert image["image_url"] == {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}", "detail": "high"}
    assert text == trap
    assert body["messages"][0]["content"][0]["image_url"]["url"] == media_url(SHA)


def test_kept_body_and_images_reproduce_what_was_sent() -> None:
    kept = serialise(request_body(asks(), "vllm"))
    again = serialise(with_media(json.loads(kept), {SHA: PNG}))
    assert again == serialise(with_media(request_body(asks(), "vllm"), {SHA: PNG}))
    assert digest_of(kept) == hashlib.sha256(kept).hexdigest()


@pytest.mark.parametrize(
    ("media", "said"),
    [({}, "was not given"), ({SHA: PNG + b"x"}, "another digest")],
)
def test_missing_or_wrong_images_are_refused(media: dict[str, bytes], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        with_media(request_body(asks(), "vllm"), media)


def test_what_is_no_picture_is_refused() -> None:
    text = b"not a picture"
    sha256 = hashlib.sha256(text).hexdigest()
    parts = [{"type": "image_url", "image_url": {"url": media_url(sha256)}}]
    with pytest.raises(InvalidInput, match="neither PNG"):
        with_media({"messages": [{"role": "user", "content": parts}]}, {sha256: text})


def test_sampling_is_named_as_the_api_names_it() -> None:
    sampling = Sampling(temperature=0.0, top_p=0.9, max_output_tokens=7, seed=0, stop=["x"], extra={"top_k": 20})
    vllm = request_body(asks(sampling=sampling), "vllm")
    assert (vllm["temperature"], vllm["max_tokens"], vllm["seed"], vllm["stop"], vllm["top_k"]) == (
        0.0,
        7,
        0,
        ["x"],
        20,
    )
    assert (vllm["stream"], vllm["logprobs"], vllm["return_token_ids"]) == (False, True, True)
    openai = request_body(asks(sampling=sampling), "openai")
    assert openai["max_completion_tokens"] == 7
    assert not {"max_tokens", "logprobs", "return_token_ids"} & set(openai)
    assert request_body(asks(), "sglang").keys() >= {"return_meta_info", "return_prompt_token_ids"}
    assert not {"temperature", "max_tokens", "seed", "stop", "tools"} & set(request_body(asks(), "vllm"))


@pytest.mark.parametrize("field", sorted(OWNED))
def test_extra_fields_cannot_take_over(field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        request_body(asks(sampling=Sampling(extra={field: 1})), "vllm")


@pytest.mark.parametrize("value", [math.nan, math.inf, b"x", "\ud800"])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        serialise({"x": value})


# --- correlation headers ------------------------------------------------------------------------------------


@given(st.text())
def test_header_values_are_one_printable_line(text: str) -> None:
    value = header_value(text)
    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= 1024


def test_line_breaks_are_stripped_and_length_is_bounded() -> None:
    assert header_value("a\r\nX-Evil: 1\nb") == "aX-Evil: 1b"
    assert header_value("café\t") == "caf%C3%A9"
    assert len(header_value("x" * 5000)) == 1024


def test_upstream_names_where_upstream_knows_the_field() -> None:
    found = correlation_headers({"task_id": "t", "step": 3, "rollout_key": "b/d/t/0", "domain": None, "run_id": ""})
    assert found == {
        "x-rollbook-task-id": "t",
        "x-nemo-gym-log-task-id": "t",
        "x-rollbook-step": "3",
        "x-nemo-gym-log-step": "3",
        "x-rollbook-rollout-key": "b/d/t/0",
    }
    assert len(UPSTREAM_FIELDS) == 18


# --- token evidence -----------------------------------------------------------------------------------------


def vllm(prompt: Any = (1, 2), ids: Any = (3, 4), logprobs: Any = (-0.5, -1), usage: Any = None) -> tuple[Any, Any]:
    content = None if logprobs is None else {"content": [{"token": "x", "logprob": one} for one in logprobs]}
    choice = {"token_ids": None if ids is None else list(ids), "logprobs": content}
    return {"prompt_token_ids": None if prompt is None else list(prompt), "usage": usage}, choice


def test_complete_evidence_of_vllm() -> None:
    found = token_evidence(*vllm())
    assert (found.prompt_token_ids, found.sampled_token_ids, found.sampled_logprobs) == ([1, 2], [3, 4], [-0.5, -1.0])
    assert found.problems == ()


def test_complete_evidence_of_sglang() -> None:
    meta = {"output_token_logprobs": [[-0.5, 3, None], [-1.0, 4, "x"]]}
    found = token_evidence({"usage": {"prompt_tokens": 99}}, {"prompt_token_ids": [1, 2], "meta_info": meta})
    assert (found.prompt_token_ids, found.sampled_token_ids, found.sampled_logprobs) == ([1, 2], [3, 4], [-0.5, -1.0])
    assert found.problems == ()


def test_ids_in_token_texts_of_older_vllm() -> None:
    content = [{"token": "token_id:3", "logprob": -1.0}, {"token": "token_id:4", "logprob": -2.0}]
    found = token_evidence({}, {"logprobs": {"content": content}})
    assert found.sampled_token_ids == [3, 4]
    assert found.problems == ("exact_prompt_token_ids_unavailable",)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"prompt": None}, "exact_prompt_token_ids_unavailable"),
        ({"prompt": []}, "exact_prompt_token_ids_invalid"),
        ({"prompt": [1, True]}, "exact_prompt_token_ids_invalid"),
        ({"prompt": [1, 2.0]}, "exact_prompt_token_ids_invalid"),
        ({"usage": {"prompt_tokens": 3}}, "exact_prompt_token_ids_invalid"),
        ({"ids": None}, "exact_sampled_token_ids_unavailable"),
        ({"ids": [3, -4]}, "exact_sampled_token_ids_invalid"),
        ({"ids": ["3", "4"]}, "exact_sampled_token_ids_invalid"),
        ({"usage": {"completion_tokens": 3}}, "exact_sampled_token_ids_invalid"),
        ({"logprobs": None}, "exact_sampled_logprobs_unavailable"),
        ({"logprobs": [-0.5, math.nan]}, "exact_sampled_logprobs_invalid"),
        ({"logprobs": [-0.5, -math.inf]}, "exact_sampled_logprobs_invalid"),
        ({"logprobs": [-0.5, None]}, "exact_sampled_logprobs_invalid"),
        ({"logprobs": [-0.5, True]}, "exact_sampled_logprobs_invalid"),
        ({"logprobs": [-0.5, 10**400]}, "exact_sampled_logprobs_invalid"),
        ({"logprobs": [-0.5]}, "sampled_token_logprob_length_mismatch"),
    ],
)
def test_broken_evidence_is_named_never_mended(arguments: dict[str, Any], problem: str) -> None:
    found = token_evidence(*vllm(**arguments))
    assert found.problems == (problem,)
    whole = [found.prompt_token_ids, found.sampled_token_ids, found.sampled_logprobs]
    assert whole.count(None) == (problem != "sampled_token_logprob_length_mismatch")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, json_values, json_values, json_values)
def test_no_server_can_make_the_reading_crash(prompt: Any, ids: Any, logprobs: Any, meta: Any) -> None:
    choice = {"token_ids": ids, "logprobs": logprobs, "meta_info": meta, "message": prompt}
    found = token_evidence({"prompt_token_ids": prompt, "usage": meta}, choice)
    for ids_found in (found.prompt_token_ids, found.sampled_token_ids):
        assert ids_found is None or (ids_found and all(type(one) is int and one >= 0 for one in ids_found))
    assert found.sampled_logprobs is None or all(math.isfinite(one) for one in found.sampled_logprobs)
    complete = None not in (found.prompt_token_ids, found.sampled_token_ids, found.sampled_logprobs)
    assert complete or found.problems


# --- replies ------------------------------------------------------------------------------------------------

ASKED = Asked("asked", b"{}", "d", "s")


def reads(document: Any) -> ChatReply:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_reply(raw, ASKED, 0.0, 0.1)


def test_a_reply_in_its_parts() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "click", "arguments": "{}"}}
    message = {
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "reasoning": "r",
        "tool_calls": [call],
    }
    reply = reads({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 4}})
    assert (reply.content, reply.reasoning, reply.tool_calls, reply.finish_reason) == ("ab", "r", [call], "tool_calls")
    assert (reply.model_name, reply.model_version) == ("asked", None)
    assert (reply.tokens("prompt"), reply.tokens("completion")) == (4, None)
    assert reply.token_evidence_problems[0] == "exact_prompt_token_ids_unavailable"


@pytest.mark.parametrize(
    "document",
    [
        b"<html>",
        b"[" * 100_000,
        b"[]",
        {},
        {"choices": []},
        {"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]},
        {"choices": [{"message": {"content": "half"}, "finish_reason": "abort"}]},
        {"error": {"message": "upstream died", "code": 502}},
        {"error": "upstream died", "choices": [{"message": {"content": "half", "tool_calls": [{"id": "1"}]}}]},
        {"choices": [{"message": {"content": "half"}, "finish_reason": "error"}]},
        {"choices": [{"message": {"content": "half"}, "error": {"message": "Provider returned error", "code": 502}}]},
        {"choices": [{"message": {"content": "half", "error": {"message": "died", "type": "server_error"}}}]},
    ],
)
def test_what_is_no_completion_is_a_transport_failure(document: Any) -> None:
    with pytest.raises(TransportFailed):
        reads(document)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "code": 429}, RateLimited),
        ({"message": "slow down", "code": "rate_limit_exceeded"}, RateLimited),
        ({"message": "Overloaded", "type": "overloaded_error"}, TransportFailed),
        ({"message": "no such key", "code": "401"}, AuthFailed),
        ({"message": "wrong", "type": "invalid_request_error"}, BadRequest),
        ({"message": "prompt is too long: 9 tokens > 8 maximum"}, ContextOverflow),
    ],
)
def test_an_error_within_a_success_is_taken_for_what_it_is(error: Any, kind: type[Exception]) -> None:
    half = {"message": {"content": "half"}}
    for document in ({"error": error}, {"error": error, "choices": [half]}, {"choices": [half | {"error": error}]}):
        with pytest.raises(kind) as raised:
            reads(document)
        assert raised.value.body == json.dumps(document).encode()  # type: ignore[attr-defined]


def test_an_empty_error_is_none() -> None:
    """Some servers write the field always."""
    choice = {"message": {"content": "whole", "error": None}, "error": None, "finish_reason": "stop"}
    assert reads({"error": None, "choices": [choice]}).content == "whole"


def test_a_reply_with_a_secret_keeps_neither_it_nor_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SecretRegistry()
    monkeypatch.setattr(redaction, "SECRETS", registry)
    registry.add('se"cret/key')
    logprobs = {"content": [{"token": 'se"', "logprob": -1.0}, {"token": "cret/key", "logprob": -1.0}]}
    choice = {"message": {"content": 'it is se"cret/key'}, "token_ids": [1, 2], "logprobs": logprobs}
    reply = reads({"choices": [choice], "prompt_token_ids": [1]})
    assert reply.content == "it is [redacted]"
    assert reply.sampled_token_ids is reply.sampled_logprobs is reply.prompt_token_ids is None
    assert reply.token_evidence_problems[0] == "exact_prompt_token_ids_unavailable"
    assert b"cret" not in reply.raw
    assert json.loads(reply.raw)["choices"][0]["message"]["content"] == reply.content


# --- refusals -----------------------------------------------------------------------------------------------

OVERFLOWS = [
    "This model's maximum context length is 8192 tokens. However, you requested 10 output tokens and your prompt "
    "contains at least 8300 input tokens, for a total of at least 8310 tokens.",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "Requested token count exceeds the model's maximum context length of 8192 tokens.",
    "the request exceeds the available context size. try increasing the context size",
    "prompt is too long: 9000 tokens > 8192 maximum",
    "Please reduce the length of the messages or completion.",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
    "The input token count (1196265) exceeds the maximum number of tokens allowed (1048576).",
    "The input token count exceeds the maximum number of tokens allowed 1048576.",
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    "Trying to keep the first 4931 tokens when context the overflows. However, the model is loaded with context length "
    "of only 4096 tokens, which is not enough. Try to load the model with a larger context length.",
    "Invalid request: Your request exceeded model token limit: 8192",
]


def answer(status: int, message: str, code: str | None = None) -> ModelCallFailed:
    return refusal(status, json.dumps({"error": {"message": message, "code": code}}).encode(), {}, 10, "m")


@pytest.mark.parametrize("message", OVERFLOWS)
def test_context_overflow_in_the_words_of_many_servers(message: str) -> None:
    assert isinstance(answer(400, message), ContextOverflow)


def test_a_body_that_is_too_large_is_an_overflow_in_any_words() -> None:
    assert isinstance(refusal(413, b"<html>Request Entity Too Large</html>", {}), ContextOverflow)


def test_context_overflow_by_code() -> None:
    assert isinstance(answer(400, "too much", "context_length_exceeded"), ContextOverflow)


def test_a_reply_limit_beyond_the_context_is_a_mistake_not_an_outcome() -> None:
    said = "This model's maximum context length is 10 tokens. However, you requested 10 output tokens"
    assert isinstance(answer(400, said), BadRequest)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, BadRequest),
        (400, BadRequest),
        (404, BadRequest),
        (422, BadRequest),
        (401, AuthFailed),
        (403, AuthFailed),
        (408, TransportFailed),
        (429, RateLimited),
        (503, TransportFailed),
        (500, TransportFailed),
        (502, TransportFailed),
        (504, TransportFailed),
    ],
)
def test_statuses(status: int, kind: type[Exception]) -> None:
    error = answer(status, "no")
    assert type(error) is kind
    assert (error.reason, str(status) in str(error)) == ("model_call_failed", True)


def test_an_overload_that_names_a_time_is_a_rate_limit_and_one_that_does_not_is_a_server_away() -> None:
    for status, headers, kind in (
        (503, {"retry-after": "7"}, RateLimited),
        (503, {"retry-after-ms": "7000"}, RateLimited),
        (503, {}, TransportFailed),
        (529, {}, TransportFailed),
    ):
        error = refusal(status, b"Overloaded", headers)
        assert (type(error), error.repeatable) == (kind, True), status


def test_a_refused_request_for_token_ids_names_the_way_out() -> None:
    assert "api = 'openai'" in str(answer(400, "Unrecognized request argument supplied: return_token_ids"))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 5.0),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "99999"}, 600.0),
        ({"retry-after": "-3"}, 5.0),
        ({"retry-after": "soon"}, 5.0),
        ({"retry-after": "99999999999"}, 5.0),
        ({"retry-after": "9" * 400}, 5.0),
        ({"retry-after-ms": "9" * 20}, 5.0),
        ({"retry-after": "Sun, 06 Nov 2994 08:49:47 GMT"}, 5.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:47 +99999999999999"}, 5.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:47 GMT"}, 10.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:00:00 GMT"}, 0.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float) -> None:
    now = datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)
    assert retry_after_s(headers, now) == seconds
