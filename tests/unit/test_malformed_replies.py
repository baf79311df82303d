"""Whatever a server answers with 200 is read, judged and made into a row that Postgres can hold; nothing is lost."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.identity import canonical_json
from rollbook.errors import BODY_LIMIT
from rollbook.ledger.records import ModelCall
from rollbook.policies.agent import Screen
from rollbook.policies.client import CallError, ChatReply, RateLimited, TransportFailed
from rollbook.policies.client.faults import DEEPEST, read_json, refusal
from rollbook.policies.client.reply import Asked, read_reply
from rollbook.policies.model import parsed_of, said_of, tokens_of
from rollbook.policies.protocols.base import MediaRef, Parsed, ProtocolOptions
from rollbook.policies.protocols.registry import PARSERS, protocol

PROTOCOLS = [protocol(name, ProtocolOptions()) for name in sorted(PARSERS)]
CODE, TOOL = (protocol(name, ProtocolOptions()) for name in ("pyautogui-code-v1", "computer-tool-v1"))
SCREEN = Screen(MediaRef("m", "a" * 64, 1920, 1080), (1920, 1080))
CLICK = "## Thought:\nt\n\n## Action:\na\n\n## Code:\n```python\npyautogui.click(0.5, 0.5)\n```"


def read(document: Any) -> ChatReply:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_reply(raw, Asked("asked", b"{}", "d", "s"), 0.0, 0.1)


def outcome(raw: bytes) -> ChatReply | CallError:
    try:
        return read(raw)
    except CallError as error:
        return error


def row_of(reply: ChatReply, parsed: Parsed) -> ModelCall:
    """The row, as the policy and its call log fill it."""
    rejected = parsed.failure_kind is not None
    return ModelCall(
        step=1,
        policy_kind="openai",
        actions=[] if rejected else parsed.actions,
        terminal_action=None if rejected else parsed.terminal_action,
        accepted=not rejected,
        parse_error=parsed.error if rejected else None,
        failure_kind=parsed.failure_kind,
        finish_reason=reply.finish_reason,
        model_version=reply.model_version,
        prompt_tokens=reply.tokens("prompt"),
        completion_tokens=reply.tokens("completion"),
        telemetry={"served_model": reply.model_name, "usage": reply.usage},
        said=said_of(reply, parsed),
    )


def assert_storable(row: ModelCall) -> None:
    """Values that text, jsonb and integer columns accept."""
    for count in (row.prompt_tokens, row.completion_tokens):
        assert count is None or 0 <= count < 2**31
    kept = canonical_json(row.model_dump(mode="python"))  # raises for NaN and infinities
    assert "\\u0000" not in kept.replace("\\\\", "")
    kept.encode()  # raises for lone surrogates


def check(raw: bytes) -> None:
    """One row with the body, whatever it is; read again it is the same."""
    reply = outcome(raw)
    if isinstance(reply, CallError):
        assert isinstance(reply, RateLimited) or reply.body == raw
        assert "cannot be read" not in str(reply), "foreseen, that is"
        ModelCall(step=1, policy_kind="openai", completed=False, accepted=False, parse_error=str(reply))
        return
    assert reply.raw == raw
    for spoken in PROTOCOLS:
        parsed = parsed_of(spoken, reply, SCREEN)
        assert parsed.failure_kind is not None or reply.normalization_error is None
        row = row_of(reply, parsed)
        assert_storable(row)
        again = read(reply.raw)
        assert row_of(again, parsed_of(spoken, again, SCREEN)) == row
    tokens = tokens_of(reply)
    assert tokens is None or json.loads(tokens, parse_constant=pytest.fail)
    assert tokens_of(read(reply.raw)) == tokens


texts = st.text(max_size=6) | st.sampled_from(["\x00", "\ud800", "a\udfffb\x00", CLICK, "token_id:" + "9" * 5000])
numbers = st.integers() | st.floats() | st.sampled_from([10**30, -(10**30), 10**4000, math.nan, math.inf, True])
leaves = st.none() | st.booleans() | numbers | texts
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def whole_reply() -> dict[str, Any]:
    """A valid reply with every member that is read, in every place where a server may put it."""
    function = {"name": "computer", "arguments": {"action": "click", "coordinate": [0.5, 0.5], "button": "left"}}
    arrays = {"token_ids": [3, 4], "routed_experts": [[[1, 2]], [[3, 4]]], "prompt_token_ids": [1, 2]}
    choice = {
        "message": {
            "content": [{"type": "text", "text": CLICK}],
            "reasoning": "r",
            "reasoning_content": "r",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
            "generation_token_ids": [3, 4],
            "generation_log_probs": [-0.5, -1.0],
        },
        "finish_reason": "stop",
        "logprobs": {"content": [{"token": "token_id:3", "logprob": -0.5}, {"token": "token_id:4", "logprob": -1.0}]},
        "meta_info": {"output_token_logprobs": [[-0.5, 3, "x"], [-1.0, 4, None]], "weight_version": "w"},
        "sgl_ext": {"routed_experts": "AAEC"},
        **arrays,
    }
    usage = {"prompt_tokens": 2, "completion_tokens": 2, "details": {"cost": 0.1}}
    return {"choices": [choice], "usage": usage, "model": "m", "system_fingerprint": "f", "prompt_token_ids": [1, 2]}


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths_of(item, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], what: Any) -> Any:
    """A copy with something else at the path; None for `what` leaves the member out where that can be."""
    if not path or not isinstance(value, dict | list):
        return what
    key, *rest = path
    if isinstance(value, list):
        return [put(item, tuple(rest), what) if place == key else item for place, item in enumerate(value)]
    if what is None and not rest:
        return {name: item for name, item in value.items() if name != key}
    return {name: put(item, tuple(rest), what) if name == key else item for name, item in value.items()}


@st.composite
def unruly(draw: st.DrawFn) -> bytes:
    """A reply that is right but for a few places, in each of which anything may stand, or nothing."""
    reply: Any = whole_reply()
    if draw(st.booleans()):  # without tool calls, the content decides; as text it may be the code, or noise
        reply = put(reply, ("choices", 0, "message", "tool_calls"), None)
        reply = put(reply, ("choices", 0, "message", "content"), draw(texts))
    for path in draw(st.lists(st.sampled_from(paths_of(reply)), min_size=1, max_size=3)):
        reply = put(reply, path, draw(anything))
    if draw(st.booleans()):
        reply = {**reply, "error": draw(anything)} if isinstance(reply, dict) else reply
    return json.dumps(reply).replace("Infinity", draw(st.sampled_from(["Infinity", "1e999"]))).encode()


@settings(max_examples=400, deadline=None)
@given(unruly())
@example(b'{"choices": [{"message": {"tool_calls": 5}}]}')
@example(b'{"choices": [{"logprobs": {"content": [{"token": "token_id:%s"}]}}]}' % (b"9" * 5000))
@example(b'{"choices": [{"message": {"content": %s}}], "usage": {"prompt_tokens": %s}}' % (b"7" * 5000, b"9" * 4000))
def test_no_reply_can_be_lost(raw: bytes) -> None:
    check(raw)


@settings(max_examples=100, deadline=None)
@given(unruly(), st.integers(0, 1500), st.binary(max_size=4))
def test_nor_one_that_is_cut_or_spoilt(whole: bytes, place: int, noise: bytes) -> None:
    check(whole[:place] + noise + whole[place + len(noise) :])
    check(whole[:place])


@pytest.mark.parametrize("depth", [DEEPEST, 90, 500, 980, 1020, 20_000])
@pytest.mark.parametrize(
    "place",
    [
        '{"choices": [{"message": {"content": "x"}}], "usage": %s}',
        '{"choices": [{"message": {"content": %s}}]}',
        '{"choices": [{"message": {"tool_calls": [{"function": {"name": "computer", "arguments": %s}}]}}]}',
        '{"choices": [%s]}',
        '{"choices": %s}',
        '{"error": {"message": %s}}',
        "%s",
    ],
)
def test_nor_one_that_is_deep(place: str, depth: int) -> None:
    check((place % ("[" * depth + "]" * depth)).encode())
    check((place % ('{"a":' * depth + "1" + "}" * depth)).encode())
    check((place % ("[" * depth)).encode())


@given(anything)
def test_documents_are_read_as_python_reads_them(document: Any) -> None:
    text = json.dumps(document)
    wanted = json.loads(text, parse_constant=lambda _: None)
    assert canonical_json(read_json(text.encode())) == canonical_json(wanted)


def test_what_no_number_of_python_holds_is_null() -> None:
    found = read_json(b'{"a": NaN, "b": [1e999, -Infinity, 1.5], "c": %s, "d": -7}' % (b"9" * 5000))
    assert found == {"a": None, "b": [None, None, 1.5], "c": None, "d": -7}


def test_brackets_within_texts_are_no_depth() -> None:
    said = "[{" * 5000 + '\\"'
    assert read_json(json.dumps({"a": [said] * 70, "b": [[]] * 70}).encode()) == {"a": [said] * 70, "b": [[]] * 70}


# --- the form of a reply ------------------------------------------------------------------------------------

ARRAYS = {"token_ids": [3, 4], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.0}]}}


@pytest.mark.parametrize(
    ("message", "content", "kind"),
    [
        ("I click.", "I click.", "unparseable"),
        (CLICK, CLICK, "unparseable"),
        (5, "5", "unparseable"),
        ({"content": {"b": 1, "a": None}}, '{"a":null,"b":1}', "unparseable"),
        ([{"type": "text", "text": "parts"}], "parts", "unparseable"),
        (None, None, "empty_response"),
    ],
)
def test_what_is_no_message_keeps_its_tokens_and_is_rejected(message: Any, content: str | None, kind: str) -> None:
    """The raw content goes to the parser, which rejects it."""
    reply = read({"choices": [{"message": message, "finish_reason": "stop", **ARRAYS}], "prompt_token_ids": [1, 2]})
    assert reply.normalization_error
    assert reply.content == content
    assert (reply.prompt_token_ids, reply.sampled_token_ids, reply.sampled_logprobs) == ([1, 2], [3, 4], [-0.5, -1.0])
    assert reply.token_evidence_problems == ()
    for spoken in PROTOCOLS:
        assert parsed_of(spoken, reply, SCREEN).failure_kind == kind


def test_what_is_no_message_and_was_cut_off_is_truncated() -> None:
    reply = read({"choices": [{"message": "I cl", "finish_reason": "length"}]})
    assert {parsed_of(spoken, reply, SCREEN).failure_kind for spoken in PROTOCOLS} == {"output_truncated"}


def test_a_choice_that_is_no_object_is_its_own_content() -> None:
    reply = read({"choices": ["hello"], "prompt_token_ids": [1]})
    assert (reply.content, reply.prompt_token_ids) == ("hello", [1])
    assert reply.normalization_error == "the choice's message is a text, not an object"


@pytest.mark.parametrize("given_calls", [5, "x", {"function": {}}, True])
def test_tool_calls_that_are_no_list_are_none(given_calls: Any) -> None:
    reply = read({"choices": [{"message": {"content": CLICK, "tool_calls": given_calls}}]})
    assert (reply.tool_calls, reply.normalization_error) == ([], None)
    assert parsed_of(CODE, reply, SCREEN).actions


@pytest.mark.parametrize("count", [2**31, 10**30, -1, 1.5, True, "7", math.nan])
def test_counts_that_no_column_holds_are_null(count: Any) -> None:
    reply = read(
        {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": count, "completion_tokens": 7}}
    )
    assert (reply.tokens("prompt"), reply.tokens("completion")) == (None, 7)


@pytest.mark.parametrize("count", [2**31, 10**30, -1])
def test_nor_does_a_row_hold_them(count: int) -> None:
    row = ModelCall(step=1, policy_kind="openai", prompt_tokens=count, completion_tokens=2**31 - 1)
    assert (row.prompt_tokens, row.completion_tokens) == (None, 2**31 - 1)


def test_arguments_without_numbers_are_unparseable_and_storable() -> None:
    function = {"name": "computer", "arguments": {"action": "click", "coordinate": [math.nan, math.inf]}}
    reply = read({"choices": [{"message": {"tool_calls": [{"function": function}]}}]})
    parsed = parsed_of(TOOL, reply, SCREEN)
    assert parsed.failure_kind == "unparseable"
    assert reply.tool_calls[0]["function"]["arguments"]["coordinate"] == [None, None]
    assert_storable(row_of(reply, parsed))


# --- what is kept of a body ---------------------------------------------------------------------------------


def test_the_body_of_a_200_is_kept_whole() -> None:
    for raw in (b"x" * 3 * BODY_LIMIT, json.dumps({"error": {"message": "m" * 3 * BODY_LIMIT}}).encode()):
        with pytest.raises(CallError) as error:
            read(raw)
        assert error.value.body == raw


def test_the_body_of_a_refusal_is_cut() -> None:
    assert len(refusal(500, b"x" * 3 * BODY_LIMIT, {}).body) == BODY_LIMIT


def test_an_unforeseen_error_becomes_a_typed_one_with_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise LookupError("nobody thought of it")

    monkeypatch.setattr("rollbook.policies.client.reply.token_evidence", broken)
    with pytest.raises(TransportFailed, match="LookupError: nobody thought of it") as error:
        read({"choices": [{"message": {"content": "x"}}]})
    assert json.loads(error.value.body)["choices"]


# --- routed experts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("experts", [[[[1, 2], [3, 4]]], "AAECAw=="])
@pytest.mark.parametrize("place", ["choice", "message", "meta_info", "sgl_ext", "reply"])
def test_routed_experts_are_kept_as_they_were_given(place: str, experts: Any) -> None:
    choice: dict[str, Any] = {"message": {"content": "x"}, **ARRAYS}
    reply: dict[str, Any] = {"choices": [choice], "prompt_token_ids": [1, 2]}
    target = {"choice": choice, "message": choice["message"], "reply": reply.setdefault("sglext", {})}
    target.get(place, choice.setdefault(place, {}))["routed_experts"] = experts
    found = json.loads(tokens_of(read(reply)) or b"")
    assert found["routed_experts"] == experts
    assert found["sampled_token_ids"] == [3, 4]


@pytest.mark.parametrize("experts", [None, 5, {}, [], "", True])
def test_without_them_the_arrays_have_the_digest_they_always_had(experts: Any) -> None:
    choice = {"message": {"content": "x"}, "routed_experts": experts, **ARRAYS}
    assert tokens_of(read({"choices": [choice], "prompt_token_ids": [1, 2]})) == (
        b'{"prompt_token_ids":[1,2],"sampled_logprobs":[-0.5,-1.0],"sampled_token_ids":[3,4]}'
    )
