"""Results of NeMo Gym as they may come: what is read, and what is refused with its field."""

from typing import Any

import pytest

from models.gym_results import is_not_terminal, read_row

OLD: dict[str, Any] = {"task_id": "t", "_ng_rollout_index": 2, "mask_sample": False, "score": 0.5, "reward": 0.0}
NEW: dict[str, Any] = {
    "verifier_metadata": {"task_id": "t", "osworld_score": 1.0, "osworld_steps": [{}, {}]},
    "reward": 1.0,
    "evaluation_completed": True,
    "horizon_reached": False,
    "runtime_eligible": True,
    "mask_sample": False,
    "runtime_admission_reason": "valid_evaluated_outcome",
    "runtime_admission_policy_id": "osworld-runtime-admission-v1",
    "termination_reason": "agent_done",
}
FAILED = NEW | {
    "verifier_metadata": {"task_id": "t"},
    "reward": 0.0,
    "evaluation_completed": False,
    "runtime_eligible": False,
    "mask_sample": True,
    "runtime_admission_reason": "evaluator_error",
    "termination_reason": "evaluator_error",
}


@pytest.mark.parametrize(
    ("changes", "admitted", "reason", "termination", "score", "reward"),
    [
        ({}, True, "legacy_runtime_valid", "legacy_runtime_valid", 0.5, 0.0),
        ({"termination_reason": "agent_fail"}, True, "legacy_runtime_valid", "agent_fail", 0.5, 0.0),
        ({"termination_reason": "max_steps"}, True, "legacy_runtime_valid", "max_steps", 0.5, 0.0),
        ({"mask_sample": True}, False, "legacy_runtime_masked", "legacy_runtime_masked", None, None),
        ({"mask_sample": True, "score": 0.0}, False, "legacy_runtime_masked", "legacy_runtime_masked", None, None),
        ({"mask_sample": True, "termination_reason": "timeout"}, False, "timeout", "timeout", None, None),
        ({"mask_sample": True, "termination_reason": "Timeout"}, False, "timeout", "timeout", None, None),
        ({"mask_sample": True, "infrastructure_failure_reason": "timeout"}, False, "timeout", "timeout", None, None),
        (
            {"mask_sample": True, "termination_reason": "timeout", "infrastructure_failure_reason": "TimeOut"},
            *(False, "timeout", "timeout", None, None),
        ),
        ({"mask_sample": True, "termination_reason": "odd one"}, False, "odd one", "odd one", None, None),
        ({"mask_sample": True, "evaluation_completed": True}, False, *["legacy_runtime_masked"] * 2, 0.5, 0.0),
    ],
)
def test_rows_with_only_mask_sample(
    changes: Any, admitted: bool, reason: str, termination: str, score: float | None, reward: float | None
) -> None:
    row = read_row(OLD | changes, "binary")
    assert row.policy_id == "legacy-mask-sample-v1"
    assert (row.task_id, row.sample) == ("t", 2)
    assert (row.admitted, row.reason, row.termination_reason) == (admitted, reason, termination)
    assert (row.score, row.reward, row.facts.evaluation_completed) == (score, reward, score is not None)
    assert row.facts.infrastructure_failure_reason == ("timeout" if termination == "timeout" else None)


def test_rows_with_their_facts() -> None:
    row = read_row(NEW, "binary")
    assert (row.policy_id, row.reason, row.steps) == ("osworld-runtime-admission-v1", "valid_evaluated_outcome", 2)
    assert (row.facts.terminal_action, row.score, row.reward, row.sample) == ("DONE", 1.0, 1.0, 0)
    failed = read_row(FAILED, "binary")
    assert (failed.admitted, failed.reason, failed.score, failed.reward) == (False, "evaluator_error", None, None)
    timeout = {"runtime_admission_reason": "timeout", "termination_reason": "timeout", "evaluation_completed": True}
    scored = read_row(FAILED | timeout | {"score": 0.0}, "binary")
    assert (scored.admitted, scored.score, scored.reward) == (False, 0.0, 0.0), "as reported, and masked"


def test_raw_rewards_are_scores() -> None:
    row = read_row({"task_id": "t", "mask_sample": False, "reward": 0.25}, "raw")
    assert (row.score, row.reward) == (0.25, 0.25)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "a row must be a JSON object"),
        ({"task_id": "t", "score": 1}, "neither runtime_eligible nor mask_sample"),
        (OLD | {"mask_sample": 0}, "mask_sample: must be true or false, not 0"),
        (OLD | {"mask_sample": None}, "neither"),
        (NEW | {"mask_sample": True}, "contradict each other"),
        (OLD | {"score": True}, "score: must be a number from 0 to 1"),
        (OLD | {"score": float("nan")}, "score: must be a number from 0 to 1"),
        (OLD | {"score": 1.5}, "score: must be a number from 0 to 1"),
        (OLD | {"score": None}, "score: missing, and a binary reward does not give it"),
        (OLD | {"reward": 0.5}, "reward: 0.5 is not the binary reward of score 0.5; another reward mode"),
        (OLD | {"evaluation_completed": False}, "a row that was not evaluated is not eligible"),
        (OLD | {"termination_reason": "timeout"}, "a row that ended with timeout is not eligible"),
        (OLD | {"termination_reason": "max_steps", "horizon_reached": False}, "max_steps implies it"),
        (OLD | {"termination_reason": "agent_done", "horizon_reached": True}, "agent_done excludes it"),
        (OLD | {"task_id": None}, "task_id: required"),
        (OLD | {"verifier_metadata": {"task_id": "u"}}, "task_id: its fields contradict each other"),
        (OLD | {"rollout_index": 1}, "rollout_index: its fields contradict each other"),
        (OLD | {"_ng_rollout_index": -1}, "rollout_index: must be a whole number"),
        (OLD | {"_ng_rollout_index": True}, "rollout_index"),
        (OLD | {"verifier_metadata": {"osworld_score": 0.7}}, "score: 0.5 and verifier_metadata.osworld_score 0.7"),
        (NEW | {"evaluation_completed": None}, "evaluation_completed: missing"),
        (NEW | {"runtime_admission_policy_id": "mine"}, "runtime_admission_policy_id: 'mine'"),
        (NEW | {"termination_reason": None}, "the row says"),
        (NEW | {"runtime_admission_reason": "because"}, "the row says"),
        (FAILED | {"termination_reason": "agent_done"}, "the row says"),
        (OLD | {"steps": -1}, "steps: must be a list"),
        (OLD | {"steps": 2**40}, "steps: must be a list or a number from 0 to 1000000, not 1099511627776"),
        (OLD | {"_ng_rollout_index": 2**31}, "rollout_index: must be a whole number from 0 to 999999"),
        (OLD | {"score": 10**400}, "score: must be a number from 0 to 1"),
        (OLD | {"score": float("inf")}, "score: must be a number from 0 to 1"),
        *[
            (OLD | {"termination_reason": word}, f"termination_reason: a row that ended with {ending} is not eligible")
            for word, ending in (
                ("evaluation_incomplete", "evaluation_incomplete"),
                ("rollout_state_incomplete", "rollout_state_incomplete"),
                ("Timeout", "timeout"),
                (" TIMEOUT ", "timeout"),
                ("Sandbox lost", "sandbox_lost"),
                ("model-call-failed", "model_call_failed"),
                ("out of memory", "out of memory"),
            )
        ],
        (OLD | {"termination_reason": "Agent_Done"}, "exactly one of agent_done, agent_fail"),
        (
            OLD | {"infrastructure_failure_reason": "sandbox_lost"},
            "a row that failed with",
        ),
        (
            OLD | {"infrastructure_failure_reason": "odd one"},
            "a row that failed with odd",
        ),
        (OLD | {"verifier_metadata": {"osworld_infrastructure_failure_reason": "timeout"}}, "failed with timeout"),
        (
            NEW | {"infrastructure_failure_reason": "timeout"},
            "a row that failed with timeout",
        ),
        (FAILED | {"infrastructure_failure_reason": "timeout"}, "timeout and termination_reason evaluator_error"),
        (FAILED | {"infrastructure_failure_reason": 7}, "infrastructure_failure_reason: must be a text"),
        (FAILED | {"termination_reason": "Evaluator_Error"}, "the row says"),
        (
            OLD | {"mask_sample": True, "termination_reason": "agent_done", "infrastructure_failure_reason": "timeout"},
            "infrastructure_failure_reason: timeout and termination_reason agent_done contradict",
        ),
    ],
)
def test_what_is_refused(raw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_row(raw, "binary")


def test_which_rows_stand_beside_a_result() -> None:
    flags: list[Any] = [{}, {"_ng_failure_terminal": None}, {"_ng_failure_terminal": True}]
    assert [is_not_terminal(OLD | flag) for flag in flags] == [False] * 3
    assert is_not_terminal(OLD | {"_ng_failure_terminal": False})
    with pytest.raises(ValueError, match="_ng_failure_terminal: must be true or false, not 0"):
        is_not_terminal(OLD | {"_ng_failure_terminal": 0})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task_id": "\ud800"}, "task_id"),
        ({"verifier_metadata": {"task_id": "t", "note": ["a", "\udfff"]}}, "verifier_metadata.note"),
        ({"error": "half a pair: \ud83d"}, "error"),
        ({"\ud800": 1}, "a key"),
    ],
)
def test_half_a_surrogate_pair_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: must not contain an unpaired surrogate"):
        read_row(OLD | changes, "binary")
