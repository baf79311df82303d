"""Pure rules of evidence: segments, boundaries, lineage, failures; and which call follows from which records."""

import dataclasses
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import Contract, Resolved
from models.spec import contract_of, read_spec
from rollbook.errors import ConfigError, LedgerConflict
from rollbook.evidence.exact import assign_segments, exact_envelope, lineage_deltas
from rollbook.evidence.load import AttemptEvidence, CallEvidence, Tokens
from rollbook.evidence.trajectory import parse_failure, trajectory_contract
from rollbook.export.training import rows_of
from rollbook.ledger.reader import RecordedAttempt
from rollbook.ledger.records import CallRecord
from rollbook.policies.agent import Agent, AgentTask, Screen
from rollbook.policies.protocols.base import MediaRef
from rollbook.policies.replay import script_of


def contract(**policy: Any) -> Contract:
    spec = read_spec({"task_set": "demo", "policy": {"kind": "openai", "endpoint": "x", "model": "m", **policy}})
    return contract_of(spec, Resolved(parser_id="pyautogui-code-parser-v1"))


def row(step: int, parse_attempt: int = 1, **changes: Any) -> CallRecord:
    """A model call's row."""
    columns: dict[str, Any] = {
        "step": step,
        "parse_attempt": parse_attempt,
        "policy_kind": "openai",
        "actions": ["WAIT"],
        "terminal_action": None,
        "policy_stop_reason": None,
        "completed": True,
        "accepted": True,
        "decides": True,
        "summary": "",
        "parse_error": None,
        "failure_kind": None,
        "finish_reason": "stop",
        "prompt_sha256": "1" * 64,
        "response_sha256": "2" * 64,
        "image_sha256": "3" * 64,
        "tokens_sha256": "4" * 64,
        "model_name": "m",
        "model_version": "v1",
        "prompt_tokens": None,
        "completion_tokens": None,
        "latency_s": 0.5,
        "telemetry": {"image": IMAGE, "history": {}, "max_images": None},
        "said": {"content": "said", "kept_text": "kept", "tool_calls": []},
        "row_digest": f"{step}-{parse_attempt}",
    }
    return CallRecord(**columns | changes)


IMAGE = {"media_id": "media-1", "sha256": "3" * 64, "sent": [100, 50], "screen": [200, 100]}


def call(turn_id: int, prompt: list[int], sampled: list[int], media: str = "", **changes: Any) -> CallEvidence:
    return CallEvidence(
        record=row(turn_id, **changes),
        turn_id=turn_id,
        model_call_id=f"model-call-{turn_id}",
        prompt={"model": "m", "messages": [], "temperature": 1.0},
        tokens=Tokens(prompt, sampled, [-0.5] * len(sampled)),
        media=[{"media_id": one, "sha256": one, "width": 1, "height": 1} for one in media],
        reasons=[],
    )


def loaded(calls: list[CallEvidence], *, admitted: bool = True, caller: bool = True) -> AttemptEvidence:
    rollout = {
        "rollout_key": "b/os/t/0",
        "batch_id": "b",
        "contract": contract().document,
        "contract_digest": "d",
        "domain": "os",
        "task_id": "t",
        "task_digest": "td",
        "sample": 0,
        "identity_source": "caller" if caller else "derived",
        "sampling_event_id": "event" if caller else None,
        "source_group_id": "group" if caller else None,
        "group_id": "g",
        "rollout_index": 0,
        "document": {"instruction": "do"},
    }
    attempt = {"attempt_index": 1, "trajectory_rollout_id": "rollout-1", "execution_id": uuid.UUID(int=7)}
    decision = {"admitted": admitted, "reason": "r", "policy_id": "p"}
    return AttemptEvidence(
        RecordedAttempt(rollout, attempt, None, [one.record for one in calls], [], {"runtime": decision}), calls
    )


# the prompt of each call must hold the sequence before it: 1 2 3 | 4 5 | 6 7 …
APPENDING = [call(1, [1, 2, 3], [4, 5], "a"), call(2, [1, 2, 3, 4, 5, 6], [7], "ab")]


def test_a_prompt_that_extends_the_one_before_stays_in_its_segment() -> None:
    first, second = assign_segments("t", APPENDING)
    assert (first.append_compatible, second.append_compatible) == (False, True)
    assert first.segment_id == second.segment_id
    assert second.delta_start == 5
    envelope = exact_envelope(loaded(APPENDING))
    assert envelope is not None
    assert envelope["boundary_events"] == []
    assert envelope["final_policy_decision"]["segments"] == 1


@pytest.mark.parametrize(
    "second",
    [
        call(2, [1, 2, 3, 4], [7], "ab"),  # he + llo is not hello: what was sampled came back as other tokens
        call(2, [1, 2, 3, 9, 5, 6], [7], "ab"),
        call(2, [9, 2, 3, 4, 5, 6], [7], "ab"),
        call(2, [1, 2, 3, 4, 5, 6], [7], "ba"),  # the same tokens, other pictures behind them
        call(2, [1, 2, 3, 4, 5, 6], [7], ""),
    ],
)
def test_anything_else_starts_a_segment_with_one_boundary(second: CallEvidence) -> None:
    envelope = exact_envelope(loaded([APPENDING[0], second]))
    assert envelope is not None
    [event] = envelope["boundary_events"]
    one, two = envelope["model_call_metadata"]
    assert (one["compaction_event_id"], two["compaction_event_id"]) == (None, event["event_id"])
    assert (two["segment_index"], two["context_epoch"]) == (1, 1)
    assert event["previous_view_digest"] == one["policy_decision"]["view_digest"]
    assert event["retained_count"] + event["omitted_count"] == 5


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1), st.lists(st.integers(0, 3), min_size=1)), min_size=1)
)
def test_every_rewrite_has_exactly_one_boundary(arrays: list[tuple[list[int], list[int]]]) -> None:
    calls = [call(number, prompt, sampled) for number, (prompt, sampled) in enumerate(arrays, start=1)]
    envelope = exact_envelope(loaded(calls))
    assert envelope is not None
    metadata = envelope["model_call_metadata"]
    rewrites = [one["compaction_event_id"] for one in metadata[1:] if not one["expected_append_compatible"]]
    assert rewrites == [event["event_id"] for event in envelope["boundary_events"]]
    assert [one["segment_index"] for one in metadata] == sorted(one["segment_index"] for one in metadata)
    deltas = envelope["lineage_deltas"]
    assert [delta["parent_state_digest"] for delta in deltas] == [None, *(one["state_digest"] for one in deltas[:-1])]


def test_every_delta_was_validated_and_the_model_has_an_id() -> None:
    envelope = exact_envelope(loaded(APPENDING))
    assert envelope is not None
    assert [delta["validator_result"] for delta in envelope["lineage_deltas"]] == ["passed", "passed"]
    model = envelope["context_compaction_contract"]["generation_contract"]["model_identity"]
    assert model["model_id"].startswith("model-")
    other = exact_envelope(loaded([call(1, [1], [2], model_version="v2")]))
    assert other is not None
    assert (
        model["model_id"] != other["context_compaction_contract"]["generation_contract"]["model_identity"]["model_id"]
    )


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"turn_id": 7}, "turn_id"),
        ({"tokens": Tokens([1], [2, 3], [-0.5])}, "sampled_tokens"),
        ({"tokens": Tokens([], [2], [-0.5])}, "prompt_token_ids"),
        ({"record": row(2, tokens_sha256=None)}, "generation_evidence_digest"),
    ],
)
def test_a_delta_that_cannot_be_followed_does_not_pass(wrong: dict[str, Any], what: str) -> None:
    spoilt = dataclasses.replace(APPENDING[1], **wrong)
    first, second = lineage_deltas(assign_segments("t", [APPENDING[0], spoilt]))
    assert first["validator_result"] == "passed"
    assert second["validator_result"] == f"failed: {what}"


def test_there_is_no_envelope_unless_every_call_is_complete() -> None:
    incomplete = CallEvidence(**{**APPENDING[1].__dict__, "reasons": ["exact_sampled_logprobs_unavailable"]})
    found = loaded([APPENDING[0], incomplete])
    assert exact_envelope(found) is None
    assert found.incomplete_reasons == ["exact_sampled_logprobs_unavailable"]
    assert exact_envelope(loaded([])) is None


def test_admission_and_completeness_are_reported_apart() -> None:
    made = trajectory_contract(loaded(APPENDING, admitted=False, caller=False))
    assert made["runtime_admission"]["eligible"] is False
    assert made["exact_trace_admission"]["evidence_complete"] is True
    assert made["exact_trace_admission"]["incomplete_reasons"] == [
        "caller_owned_rollout_identity_unavailable",
        "rollout_sample_masked",
    ]
    assert made["training_eligibility"]["status"] == "ineligible"
    assert trajectory_contract(loaded(APPENDING))["training_eligibility"]["status"] == "requires_runtime_admission"


MEMBER = {
    "group_planned": 1,
    "group_members": 1,
    "group_valid": 1,
    "group_baseline": 1.0,
    "group_advantage": None,
    "trainable": True,
    "reward": 1.0,
    "reward_source": "evaluator",
}


def test_loss_bears_what_was_sampled_and_admitted() -> None:
    assert [one["loss_spans"] for one in rows_of(loaded(APPENDING), MEMBER)] == [[[0, 2]], [[0, 1]]]
    untrained = MEMBER | {"trainable": False}  # masked at run time, or for training, or without a trainer's identity
    assert [one["loss_spans"] for one in rows_of(loaded(APPENDING), untrained)] == [[], []]


def failed(step: int, parse_attempt: int, kind: str, **changes: Any) -> CallRecord:
    completed = kind in ("unparseable", "empty_response", "output_truncated")
    return row(
        step,
        parse_attempt,
        completed=completed,
        accepted=False,
        decides=False,
        failure_kind=kind,
        parse_error=f"{kind}!",
        **changes,
    )


def test_the_record_of_failures_ends_with_the_terminal_fact() -> None:
    shrunk = failed(1, 1, "context_overflow", telemetry={"next_max_images": 2})
    record = parse_failure([shrunk, failed(1, 2, "unparseable"), failed(1, 3, "unparseable"), row(1, 4)])
    assert record == {
        "attempt_count": 4,
        "completed_model_call_count": 3,
        "last_failure_stage": "response_parse",
        "last_failure_kind": "unparseable",
        "failure_kind_counts": {"context_overflow": 1, "unparseable": 2},
        "prompt_shrink_events": 1,
        "last_error_type": "unparseable",
        "last_error": "unparseable!",
    }
    assert parse_failure([row(1)]) is None


SCREEN = Screen(MediaRef("media-1", "3" * 64, 100, 50), (200, 100))
TASK = AgentTask("b/os/t/0", 1, "do it")


def test_a_context_that_did_not_fit_uses_up_no_try() -> None:
    agent = Agent(contract(options={"parse_retries": 2}))
    shrunk = failed(1, 1, "context_overflow", telemetry={"next_max_images": 2})
    planned = agent.next_call(TASK, 1, SCREEN, [shrunk])
    assert (planned.number, planned.max_images, planned.last_sample) == (2, 2, False)
    assert planned.sampling.temperature == 1.0, "nothing was sampled yet"
    planned = agent.next_call(TASK, 1, SCREEN, [shrunk, failed(1, 2, "unparseable")])
    assert (planned.number, planned.max_images, planned.last_sample) == (3, 2, True)


@pytest.mark.parametrize(
    ("options", "temperature", "drawn"),
    [({}, 0.0, 0.2), ({}, 0.7, 0.7), ({"parse_retry_temperature": 0.05}, 0.7, 0.05)],
)
def test_repeated_samples_are_drawn_warmer(options: dict[str, Any], temperature: float, drawn: float) -> None:
    agent = Agent(contract(options=options, sampling={"temperature": temperature}))
    assert agent.next_call(TASK, 1, SCREEN, []).sampling.temperature == temperature
    again = agent.next_call(TASK, 1, SCREEN, [failed(1, 1, "empty_response")])
    assert again.sampling.temperature == drawn


def test_feedback_outlives_an_overflow_and_a_lost_connection() -> None:
    agent = Agent(contract(options={"parse_error_feedback": True}))
    rows = [failed(1, 1, "unparseable"), failed(1, 2, "transport_error"), failed(1, 3, "context_overflow")]
    assert "unparseable!" in str(agent.next_call(TASK, 1, SCREEN, rows).messages)


def test_a_clamp_stays_in_the_states_that_follow() -> None:
    history = {"name": "hysteresis", "params": {"low_water": 2, "high_water": 5}}
    agent = Agent(contract(history=history))
    clamped = row(3, 2, telemetry={"image": IMAGE, "max_images": 1})
    rows = [row(1), row(2), failed(3, 1, "context_overflow", telemetry={"next_max_images": 1}), clamped]
    assert agent.next_call(TASK, 4, SCREEN, rows).plan.intervals == ((2, 4),)
    assert agent.next_call(TASK, 4, SCREEN, [row(1), row(2), row(3)]).plan.intervals == ((0, 4),)


def test_a_step_is_never_decided_over_a_gap() -> None:
    with pytest.raises(LedgerConflict, match="not all decided"):
        Agent(contract()).next_call(TASK, 3, SCREEN, [row(1)])


def test_another_parser_than_the_contracts_is_refused() -> None:
    stored = contract().document
    made = Contract.read(stored | {"policy": stored["policy"] | {"parser_id": "another-parser"}})
    with pytest.raises(ConfigError, match="update the worker"):
        Agent(made)


def test_a_replay_is_what_was_decided() -> None:
    calls = [
        failed(1, 1, "unparseable"),
        row(1, 2, actions=["pyautogui.click(1, 2)", "WAIT"]),
        row(2, actions=[], terminal_action="FAIL"),
    ]
    source = loaded([call(1, [1], [2])]).attempt
    again = RecordedAttempt(source.rollout, source.attempt, None, calls, [], {})
    assert script_of([again])["tasks"] == {
        "t": {
            "steps": [
                {"thought": "", "actions": ["pyautogui.click(1, 2)", "WAIT"], "stop": None},
                {"thought": "", "actions": ["FAIL"], "stop": None},
            ]
        }
    }
