"""Results of activities as a workflow reads them; a person may have completed one by hand."""

import json
from typing import Any

import pytest

from models.activities import DECIDE, RENEW_LEASE
from models.episode import Decision
from models.outcome import Infra
from workflows.activity_calls import Failure, _decoded


def test_a_result_is_read_as_its_activity_declares() -> None:
    decision = Decision(action_count=1, terminal_action="DONE")
    assert _decoded(DECIDE, json.loads(decision.model_dump_json()), Infra.MODEL_CALL_FAILED) == decision
    _decoded(RENEW_LEASE, None, Infra.ROLLOUT_ERROR)


@pytest.mark.parametrize("answer", [None, "done", [1], {"action_count": "many"}])
def test_one_that_cannot_be_read_ends_the_attempt_and_names_the_activity(answer: Any) -> None:
    with pytest.raises(Failure, match="decide: its result cannot be read: ") as failure:
        _decoded(DECIDE, answer, Infra.MODEL_CALL_FAILED)
    assert failure.value.reason is Infra.MODEL_CALL_FAILED
