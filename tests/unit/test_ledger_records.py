"""Values that the ledger accepts: scores are numbers within 0..1 or nothing, and nothing is made up."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.export.training import CALL_COLUMNS, LAYOUT
from rollbook.ledger import Evaluation, ModelCall, tables
from rollbook.ledger.records import CallRecord

DIGEST = "a" * 64

ARTIFACTS = ("prompt", "response", "image", "tokens")


@pytest.mark.parametrize("score", [0, 0.0, 0.5, 1, 1.0])
def test_scores(score: float) -> None:
    assert Evaluation(completed=True, score=score, task_digest=DIGEST).score == score


@pytest.mark.parametrize("score", [True, False, math.nan, math.inf, -math.inf, -0.01, 1.01, "1"])
def test_no_score(score: Any) -> None:
    with pytest.raises(ValidationError, match="score"):
        Evaluation(completed=True, score=score, task_digest=DIGEST)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"completed": True}, "score"),
        ({"completed": False, "score": 0.0, "reason": "evaluator_error"}, "score"),
        ({"completed": False}, "reason"),
        ({"completed": True, "score": 1.0, "reason": "evaluator_error"}, "reason"),
        ({"completed": True, "score": 1.0, "guest_failed": True}, "guest_failed"),
        ({"completed": 1, "score": 1.0}, "completed"),
        ({"completed": False, "reason": "bad luck"}, "reason"),
    ],
)
def test_an_evaluation_is_whole(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Evaluation(task_digest=DIGEST, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 0},
        {"parse_attempt": 0},
        {"policy_kind": " "},
        {"telemetry": {"seconds": math.nan}},
        {"terminal_action": "STOP"},
        {"latency_s": math.nan},
        {"latency_s": -1.0},
    ],
)
def test_a_model_call_is_whole(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelCall(**({"step": 1, "policy_kind": "noop"} | changes))


def test_text_that_postgres_cannot_hold_is_replaced() -> None:
    call = ModelCall(step=1, policy_kind="noop", actions=["a\x00b\ud800"], telemetry={"k": ["\x00"]})
    assert call.actions == ["a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"]
    assert call.telemetry == {"k": ["\N{REPLACEMENT CHARACTER}"]}


def test_a_call_record_has_the_columns_of_its_table() -> None:
    place_and_time = {"rollout_key", "attempt_index", "recorded_at"}
    assert set(CallRecord.__slots__) == set(tables.model_call.c.keys()) - place_and_time
    computed = {"decides", "row_digest"}
    committed = {f"{name}_sha256" if name in ARTIFACTS else name for name in ModelCall.model_fields}
    assert committed == set(CallRecord.__slots__) - computed


def test_a_call_exports_these_columns() -> None:
    """The list is derived from the record: a change of it needs another version of the layout."""
    assert CALL_COLUMNS == {
        "step": "int",
        "parse_attempt": "int",
        "policy_kind": "text",
        "completed": "bool",
        "accepted": "bool",
        "actions": ["text"],
        "terminal_action": "text",
        "policy_stop_reason": "text",
        "parse_error": "text",
        "failure_kind": "text",
        "finish_reason": "text",
        "model_name": "text",
        "model_version": "text",
        "prompt_tokens": "int",
        "completion_tokens": "int",
        "latency_s": "float",
    }
    assert LAYOUT == "rollbook-training-parquet-v2"
