"""Identity of attempts: upstream's recipe, upstream's count of attempts (from 0)."""

import hashlib
from typing import Any

from models.identity import trajectory_rollout_id

ROW: dict[str, Any] = {
    "task_id": "t-1",
    "group_id": "g",
    "rollout_index": 2,
    "sampling_event_id": None,
    "source_group_id": None,
}


def short(prefix: str, text: str) -> str:
    return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def test_derived() -> None:
    first = trajectory_rollout_id(ROW, "noop", 1)
    assert first == short("rollout", '["t-1","g",2,0,"noop"]')
    assert trajectory_rollout_id(ROW, "noop", 2) == short("rollout", '["t-1","g",2,1,"noop"]')


def test_scoped_by_the_trainer_and_free_of_the_model() -> None:
    row = ROW | {"sampling_event_id": "e", "source_group_id": "s"}
    expected = short(
        "rollout",
        '[{"attempt_index":1,"rollout_index":2,"sampling_event_id":"e","source_group_id":"s","task_id":"t-1"}]',
    )
    assert trajectory_rollout_id(row, "noop", 2) == expected
