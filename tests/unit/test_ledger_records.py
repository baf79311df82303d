"""Values that the ledger accepts: scores are numbers within 0..1 or nothing, and nothing is made up."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.ledger import Evaluation, ModelCall

DIGEST = "a" * 64


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
