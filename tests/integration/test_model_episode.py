"""Episodes that a model decides, on the do-nothing desktop: real HTTP, real rows, every prompt rendered again."""

import hashlib
import json
import math
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import BODY_LIMIT
from rollbook.evidence.exact import exact_envelope
from rollbook.evidence.load import load_calls
from rollbook.evidence.verify import verify
from rollbook.ledger.reader import RecordedAttempt
from rollbook.policies.protocols.registry import PARSERS
from tests.doubles.model_server import Call, Fault, Reply
from tests.support.model_server import DONE, Scenario, click_until, code, model_spec, model_system, recorded
from tests.support.system import System, small_tasks


@pytest.fixture(scope="module")
async def said() -> Scenario:
    return Scenario()


@pytest.fixture(scope="module")
async def system(
    scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str, said: Scenario
) -> AsyncIterator[System]:
    async with model_system(scratch / "model", ledger_url, temporal_address, deployment_id, said) as system:
        await system.register_tasks("one", small_tasks(1))
        yield system


async def play(system: System, said: Scenario, answer: Any, batch_id: str, spec: dict[str, Any]) -> RecordedAttempt:
    """One episode; the audit must be clean and every prompt provable."""
    said.answer, said.calls = answer, []
    await system.run_batch(spec, batch_id)
    [attempt] = await recorded(system, batch_id)
    report = await system.audit(batch_id)
    assert report.ok, report.findings
    proof = await verify(attempt, system.artifacts)
    assert proof.ok, proof.mismatches
    assert proof.prompts_equal == proof.images_equal == len(attempt.calls)
    assert proof.requests_equal == proof.replies_equal == sum(call.completed for call in attempt.calls)
    return attempt


async def test_fixed_3_over_10_steps_is_10_contexts_each_reproducible(system: System, said: Scenario) -> None:
    attempt = await play(system, said, click_until(9), "m-fixed", model_spec("one"))
    assert attempt.outcome is not None
    assert attempt.outcome["termination_reason"] == "agent_done"
    assert [call.step for call in attempt.calls] == list(range(1, 11))
    assert len({call.prompt_sha256 for call in attempt.calls}) == 10
    assert [len(call.pictures) for call in said.calls] == [1, 2, *[3] * 8]
    for row, call in zip(attempt.calls, said.calls, strict=True):
        sent = call.raw
        for picture in call.pictures:
            url = b"data:image/png;base64," + b64encode(picture.data)
            sent = sent.replace(url, b"media://" + picture.sha256.encode())
        assert hashlib.sha256(sent).hexdigest() == row.prompt_sha256, "the prompt as it went over the wire"
        assert (row.telemetry or {})["history"][
            "history_policy_id"
        ] == "osworld-history-policy-d171b7730c73e7c384ab2b25"
        assert row.tokens_sha256 is not None


async def test_40_steps_have_3_images_in_each_request(system: System, said: Scenario) -> None:
    spec = model_spec("one", limits={"max_steps": 40})
    attempt = await play(system, said, click_until(99), "m-forty", spec)
    assert attempt.outcome is not None
    assert attempt.outcome["termination_reason"] == "max_steps"
    assert [len(call.pictures) for call in said.calls] == [1, 2, *[3] * 38]


def tool_calls(call: Call) -> Any:
    """A reply of computer-tool-v1, with some thinking before it."""
    last = {"action": "terminate", "status": "success"}
    arguments = last if call.step > 9 else {"action": "click", "coordinate": [call.step / 100, 0.5]}
    return Reply(f"Step {call.step}.", "I think.", tool_calls=[{"name": "computer", "arguments": arguments}])


GROWING = {"name": "hysteresis", "params": {"low_water": 2, "high_water": 4}}
SINK = {"name": "sink_window", "params": {"sink": 1, "low_water": 3, "high_water": 4}}
IMAGES = [(GROWING, [1, 2, 3, 4, 2, 3, 4, 2, 3, 4]), (SINK, [1, 2, 3, 4, 3, 4, 3, 4, 3, 4])]


@pytest.mark.parametrize(("history", "images"), IMAGES)
@pytest.mark.parametrize("protocol", PARSERS)
async def test_every_protocol_is_reproducible_under_every_history(
    system: System, said: Scenario, protocol: str, history: dict[str, Any], images: list[int]
) -> None:
    answer = tool_calls if protocol == "computer-tool-v1" else click_until(9)
    policy = {
        "protocol": protocol,
        "history": history,
        "options": {"repeated_action_warning_threshold": 2, "pre_done_checklist": True, "thinking": True},
    }
    attempt = await play(system, said, answer, f"m-{protocol}-{history['name']}", model_spec("one", policy))
    assert attempt.outcome is not None
    assert attempt.outcome["termination_reason"] == "agent_done"
    assert [len(call.pictures) for call in said.calls] == images


async def test_parse_retries_are_calls_of_their_own(system: System, said: Scenario) -> None:
    def answer(call: Call) -> str:
        return DONE if call.parse_attempt == 3 else "I would rather talk."

    policy = {"options": {"parse_error_feedback": True}, "sampling": {"temperature": 0.1, "seed": 4}}
    attempt = await play(system, said, answer, "m-retry", model_spec("one", policy))
    calls = attempt.calls
    assert [(call.parse_attempt, call.accepted, call.failure_kind) for call in calls] == [
        (1, False, "unparseable"),
        (2, False, "unparseable"),
        (3, True, None),
    ]
    assert [call.body["temperature"] for call in said.calls] == [0.1, 0.2, 0.2]
    assert len({call.body["seed"] for call in said.calls}) == 3
    assert calls[0].parse_error
    assert calls[0].parse_error in str(said.calls[1].body["messages"][-1])
    assert calls[0].parse_error not in str(said.calls[0].body["messages"])


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("still no code", "model_response_unparseable"),
        (Reply(code("pyautogui.click(0.5, 0.5)"), fault="truncated"), "model_output_truncated"),
        (Reply(fault="empty"), "model_response_empty"),
    ],
)
async def test_what_stays_unparseable_is_evaluated_and_eligible(
    system: System, said: Scenario, last: Any, reason: str
) -> None:
    def answer(call: Call) -> Any:
        return last if call.parse_attempt == 5 else "no code here"

    attempt = await play(system, said, answer, f"m-{reason}", model_spec("one"))
    assert attempt.outcome is not None
    assert attempt.outcome["termination_reason"] == reason
    assert attempt.outcome["runtime_eligible"]
    assert attempt.outcome["score"] is not None
    assert len(attempt.calls) == 5


async def test_a_message_of_no_form_keeps_its_tokens_and_is_rejected(system: System, said: Scenario) -> None:
    """Evidence is kept whole, the parser rejects it, the evaluator scores."""
    logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": list(range(100))}] * 200}
    choice = {"message": code("pyautogui.click(0.5, 0.5)"), "token_ids": [7] * 200, "logprobs": logprobs}
    choice |= {"routed_experts": [[1, 2]]}
    body = json.dumps({"choices": [choice], "prompt_token_ids": [1, 2, 3], "usage": {"cost": math.nan}}).encode()
    assert len(body) > 3 * BODY_LIMIT
    attempt = await play(system, said, lambda _: Reply(body=body), "m-form", model_spec("one"))
    assert attempt.outcome is not None
    assert attempt.outcome["termination_reason"] == "model_response_unparseable"
    assert attempt.outcome["runtime_eligible"]
    assert len(said.calls) == len(attempt.calls) == 5
    for call in attempt.calls:
        assert call.completed
        assert (call.telemetry or {})["normalization_error"] == "the choice's message is a text, not an object"
        assert call.response_sha256
        assert call.tokens_sha256
        assert await system.artifacts.get(call.response_sha256) == body
        tokens = json.loads(await system.artifacts.get(call.tokens_sha256))
        assert (tokens["prompt_token_ids"], tokens["sampled_token_ids"]) == ([1, 2, 3], [7] * 200)
        assert tokens["routed_experts"] == [[1, 2]]
    loaded = await load_calls(attempt, system.artifacts)
    assert loaded.evidence_complete
    assert exact_envelope(loaded) is not None


def fits(most: int, otherwise: Any) -> Any:
    """A context that holds so many images."""
    return lambda call: Reply(fault="context_openai") if len(call.pictures) > most else otherwise(call)


async def test_context_overflow_shrinks_and_replans(system: System, said: Scenario) -> None:
    policy = {"history": {"name": "hysteresis", "params": {"low_water": 2, "high_water": 6}}}
    spec = model_spec("one", policy, limits={"max_steps": 8})
    attempt = await play(system, said, fits(4, click_until(99)), "m-shrink", spec)
    assert attempt.outcome is not None
    assert attempt.outcome["termination_reason"] == "max_steps"
    # step 5 would have 5 images: refused, then 4; step 6 grows again from where the clamp left the window
    assert [len(call.pictures) for call in said.calls] == [1, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 4]
    refused = [call for call in attempt.calls if call.failure_kind == "context_overflow"]
    assert [call.step for call in refused] == [5, 6, 7, 8]
    assert {(call.telemetry or {})["next_max_images"] for call in refused} == {4}
    epochs = [(call.telemetry or {})["history"]["history_policy_compaction_epoch"] for call in attempt.calls]
    assert epochs == sorted(epochs)


async def test_a_context_that_cannot_shrink_is_the_policys_own_ending(system: System, said: Scenario) -> None:
    attempt = await play(system, said, fits(0, click_until(99)), "m-overflow", model_spec("one"))
    assert attempt.outcome is not None
    assert attempt.outcome["termination_reason"] == "model_context_overflow"
    assert attempt.outcome["runtime_eligible"]
    assert attempt.attempt_index == 1
    assert [len(call.pictures) for call in said.calls] == [1]


async def test_transport_failures_are_tried_again_and_kept(system: System, said: Scenario) -> None:
    def answer(call: Call) -> Any:
        return Reply(fault="server_error") if call.parse_attempt == 1 else DONE

    attempt = await play(system, said, answer, "m-transport", model_spec("one"))
    assert [call.failure_kind for call in attempt.calls] == ["transport_error", None]
    assert attempt.attempt_index == 1


async def test_more_failures_than_tries_are_waited_out(system: System, said: Scenario) -> None:
    """Two tries, and three calls that find no working server: they count neither as samples nor as attempts."""

    def answer(call: Call) -> Any:
        return Reply(fault="server_error") if call.parse_attempt <= 3 else DONE

    attempt = await play(system, said, answer, "m-away", model_spec("one", {"options": {"parse_retries": 2}}))
    assert [call.failure_kind for call in attempt.calls] == ["transport_error"] * 3 + [None]
    assert attempt.attempt_index == 1


@pytest.mark.parametrize("fault", ["unauthorized", "not_found", "bad_request", "too_large"])
async def test_what_repeating_cannot_help_ends_the_rollout_at_once(
    system: System, said: Scenario, fault: Fault
) -> None:
    attempt = await play(system, said, lambda call: Reply(fault=fault), f"m-{fault}", model_spec("one"))
    assert (attempt.attempt_index, len(said.calls)) == (1, 1)
    assert (attempt.outcome or {})["termination_reason"] == "model_call_failed"


async def test_the_third_refused_rollout_stops_its_batch(system: System, said: Scenario) -> None:
    await system.register_tasks("six", small_tasks(6))
    said.answer, said.calls = lambda call: Reply(fault="unauthorized"), []
    spec = model_spec("six", concurrency=1)
    result = await system.run_batch(spec, "m-wrong-key")
    assert (result.state, result.counts.masked, result.counts.waiting) == ("stopped", 3, 3)
    control = await system.ledger.batch_control("m-wrong-key")
    assert control.reason.startswith("stopped: the model server refused 3 rollouts: ")
    assert "Incorrect API key" in control.reason
    assert len(said.calls) == 3
    said.answer = lambda call: DONE  # the key was put right
    assert (await system.run_batch(spec, "m-wrong-key")).counts.admitted == 3


async def test_a_rate_limit_is_waited_for_and_never_an_attempt(system: System, said: Scenario) -> None:
    def answer(call: Call) -> Any:
        return Reply(fault="rate_limited", retry_after="1") if len(said.calls) < 3 else DONE

    attempt = await play(system, said, answer, "m-limit", model_spec("one"))
    assert attempt.attempt_index == 1
    assert len(attempt.calls) == 1
    assert len(said.calls) == 3


async def test_a_model_timeout_is_typed_and_not_tried_again(system: System, said: Scenario) -> None:
    spec = model_spec("one", limits={"model_timeout_s": 1})
    attempt = await play(system, said, lambda call: Reply(fault="slow"), "m-slow", spec)
    assert attempt.outcome is not None
    assert attempt.outcome["termination_reason"] == "model_timeout"
    assert not attempt.outcome["runtime_eligible"]
    assert [call.failure_kind for call in attempt.calls] == ["model_timeout"]
    assert len(said.calls) == 1


async def test_a_replay_plays_the_recorded_actions(system: System, said: Scenario) -> None:
    await play(system, said, click_until(3), "m-source", model_spec("one"))
    policy = {"kind": "replay", "batch": "m-source"}
    spec = model_spec("one") | {"policy": policy}
    await system.run_batch(spec, "m-replay")
    [source], [again] = await recorded(system, "m-source"), await recorded(system, "m-replay")
    assert [call.actions for call in again.calls] == [call.actions for call in source.calls]
    assert again.calls[-1].terminal_action == "DONE"
    assert {call.policy_kind for call in again.calls} == {"replay"}
    assert (await system.run_batch(spec, "m-replay")).state == "already complete"
    assert (await system.audit("m-replay")).ok
