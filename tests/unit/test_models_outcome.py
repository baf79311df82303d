"""Facts, classification, reward and retries, as in docs/reference/upstream-contract.md."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.outcome import (
    ELIGIBLE,
    INCOMPLETE,
    POLICY_STOPS,
    PRECEDENCE,
    RETRYABLE,
    VALID,
    Cause,
    Classification,
    Infra,
    OutcomeFacts,
    classify,
    earns_new_attempt,
    first_reason,
    name_breakage,
    reward_of,
)

EVALUATED = {"evaluation_completed": True}

INFRA_ROWS: list[tuple[dict[str, Any], str, bool, str, bool]] = [
    ({**base, "infrastructure_failure_reason": reason}, reason.value, False, reason.value, False)
    for reason in Infra
    for base in ({}, EVALUATED, {**EVALUATED, "terminal_action": "DONE"})
]

# facts, termination_reason, eligible, runtime_admission_reason, horizon_reached
ROWS: list[tuple[dict[str, Any], str, bool, str, bool]] = [
    # 1: an infrastructure reason wins over everything; the horizon is carried through
    *INFRA_ROWS,
    (
        {**EVALUATED, "infrastructure_failure_reason": "timeout", "horizon_reached": True},
        "timeout",
        False,
        "timeout",
        True,
    ),
    # 2: not evaluated
    ({}, "evaluation_incomplete", False, "evaluation_incomplete", False),
    ({"terminal_action": "DONE"}, "evaluation_incomplete", False, "evaluation_incomplete", False),
    ({"policy_stop_reason": POLICY_STOPS[0]}, "evaluation_incomplete", False, "evaluation_incomplete", False),
    ({"environment_done": True}, "evaluation_incomplete", False, "evaluation_incomplete", False),
    ({"horizon_reached": True}, "evaluation_incomplete", False, "evaluation_incomplete", True),
    # 3: the policy stopped
    *[({**EVALUATED, "policy_stop_reason": stop}, stop, True, VALID, False) for stop in POLICY_STOPS],
    # 4: a terminal action, also when the environment says done
    ({**EVALUATED, "terminal_action": "DONE"}, "agent_done", True, VALID, False),
    ({**EVALUATED, "terminal_action": "FAIL"}, "agent_fail", True, VALID, False),
    ({**EVALUATED, "terminal_action": "FAIL", "environment_done": True}, "agent_fail", True, VALID, False),
    # 5: the environment is done
    ({**EVALUATED, "environment_done": True}, "environment_done", True, VALID, False),
    # 6: the horizon
    ({**EVALUATED, "horizon_reached": True}, "max_steps", True, VALID, True),
    # 7: nothing says how it ended
    (EVALUATED, "rollout_state_incomplete", False, "rollout_state_incomplete", False),
]


@pytest.mark.parametrize(("facts", "termination", "eligible", "reason", "horizon"), ROWS)
def test_the_first_matching_row_classifies(
    facts: dict[str, Any], termination: str, eligible: bool, reason: str, horizon: bool
) -> None:
    assert classify(OutcomeFacts(**facts)) == Classification(
        termination_reason=termination,
        runtime_eligible=eligible,
        runtime_admission_reason=reason,
        horizon_reached=horizon,
    )


def test_fresh_facts_are_closed() -> None:
    assert OutcomeFacts().model_dump() == {
        "evaluation_completed": False,
        "infrastructure_failure_reason": None,
        "terminal_action": None,
        "environment_done": False,
        "horizon_reached": False,
        "policy_stop_reason": None,
    }
    assert not classify(OutcomeFacts()).runtime_eligible


BOOLEANS = ("evaluation_completed", "environment_done", "horizon_reached")


@pytest.mark.parametrize(("field", "value"), list(itertools.product(BOOLEANS, (1, 0, "true", "", 1.0, None))))
def test_only_booleans_are_booleans(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        OutcomeFacts.model_validate({field: value})


CONFLICTS: list[dict[str, Any]] = [
    {"horizon_reached": True, "terminal_action": "DONE"},
    {"horizon_reached": True, "environment_done": True},
    {"horizon_reached": True, "policy_stop_reason": POLICY_STOPS[0]},
    {"policy_stop_reason": POLICY_STOPS[0], "terminal_action": "FAIL"},
    {"policy_stop_reason": POLICY_STOPS[0], "environment_done": True},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    *[(conflict, "excludes") for conflict in CONFLICTS],
    *[({**EVALUATED, **conflict}, "excludes") for conflict in CONFLICTS],
    ({"policy_stop_reason": ""}, "policy_stop_reason"),
    ({"policy_stop_reason": "  \n"}, "policy_stop_reason"),
    ({"policy_stop_reason": "gave_up"}, "policy_stop_reason"),
    ({"policy_stop_reason": "max_steps"}, "policy_stop_reason"),
    ({"infrastructure_failure_reason": ""}, "infrastructure_failure_reason"),
    ({"infrastructure_failure_reason": " "}, "infrastructure_failure_reason"),
    ({"infrastructure_failure_reason": "agent_done"}, "infrastructure_failure_reason"),
    ({"infrastructure_failure_reason": "Timeout"}, "infrastructure_failure_reason"),
    ({"terminal_action": "done"}, "terminal_action"),
    ({"terminal_action": "WAIT"}, "terminal_action"),
    ({"terminal_action": ""}, "terminal_action"),
    ({"terminal_action": True}, "terminal_action"),
]


@pytest.mark.parametrize(("facts", "message"), REFUSED)
def test_contradictory_or_unknown_facts_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OutcomeFacts.model_validate(facts)


def test_facts_survive_the_wire() -> None:
    facts = OutcomeFacts(evaluation_completed=True, infrastructure_failure_reason=Infra.SANDBOX_LOST)
    assert OutcomeFacts.model_validate_json(facts.model_dump_json()) == facts
    assert OutcomeFacts.model_validate({"evaluation_completed": True, "of_a_newer_version": 1}).evaluation_completed


@st.composite
def legal_facts(draw: st.DrawFn) -> OutcomeFacts:
    """Every combination that can be made, one ending or none, with and without a failure."""
    ending: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {"horizon_reached": True},
                {"environment_done": True},
                *(
                    {"terminal_action": action, "environment_done": done}
                    for action in ("DONE", "FAIL")
                    for done in (0, 1)
                ),
                *({"policy_stop_reason": stop} for stop in POLICY_STOPS),
            ]
        )
    )
    if "environment_done" in ending:
        ending = {**ending, "environment_done": bool(ending["environment_done"])}
    return OutcomeFacts(
        evaluation_completed=draw(st.booleans()),
        infrastructure_failure_reason=draw(st.none() | st.sampled_from(Infra)),
        **ending,
    )


@given(legal_facts())
def test_invariants_hold_for_all_legal_facts(facts: OutcomeFacts) -> None:
    """The invariants between termination reason, eligibility and facts."""
    found = classify(facts)
    if found.runtime_eligible:
        assert facts.evaluation_completed
        assert facts.infrastructure_failure_reason is None
        assert found.termination_reason in ELIGIBLE
    else:
        assert found.runtime_admission_reason == found.termination_reason
        assert found.termination_reason in {*Infra, *INCOMPLETE}
    if facts.infrastructure_failure_reason:
        assert not found.runtime_eligible
        assert found.termination_reason == facts.infrastructure_failure_reason
    if found.termination_reason == "max_steps":
        assert found.horizon_reached
        assert facts.horizon_reached
    if found.horizon_reached:
        assert facts.horizon_reached
        assert facts.terminal_action is None
        assert not facts.environment_done
        assert facts.policy_stop_reason is None
    assert found.runtime_eligible == (found.runtime_admission_reason == VALID)
    assert found.runtime_admission_reason.strip()
    assert type(found.runtime_eligible) is bool
    assert type(found.horizon_reached) is bool
    assert Classification.model_validate_json(found.model_dump_json()) == found


SOUND = {
    "termination_reason": "max_steps",
    "runtime_eligible": True,
    "runtime_admission_reason": VALID,
    "horizon_reached": True,
}

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"horizon_reached": False}, "max_steps implies horizon_reached"),
    ({"runtime_eligible": False}, "imply each other"),
    ({"runtime_admission_reason": "timeout"}, "imply each other"),
    ({"termination_reason": "timeout"}, "cannot be eligible"),
    ({"termination_reason": "evaluation_incomplete"}, "cannot be eligible"),
    ({"runtime_eligible": 1}, "runtime_eligible"),
    ({"horizon_reached": 1}, "horizon_reached"),
    ({"runtime_admission_reason": " "}, "runtime_admission_reason"),
    ({"termination_reason": ""}, "termination_reason"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_classification_enforces_its_invariants(change: dict[str, Any], message: str) -> None:
    assert Classification.model_validate(SOUND)
    with pytest.raises(ValidationError, match=message):
        Classification.model_validate(SOUND | change)


def test_the_vocabularies_do_not_overlap() -> None:
    assert not set(ELIGIBLE) & {*Infra}
    assert not set(ELIGIBLE) & set(INCOMPLETE)
    assert not {*Infra} & set(INCOMPLETE)
    assert set(POLICY_STOPS) < set(ELIGIBLE)


def test_the_vocabulary_is_frozen() -> None:
    """These words are in ledgers and dashboards: renaming one is a migration."""
    assert {reason.value for reason in Infra} == {
        "timeout",
        "task_timeout",
        "model_timeout",
        "action_timeout",
        "evaluator_error",
        "proxy_configuration_error",
        "proxy_required_but_disabled",
        "proxy_setup_error",
        "model_call_failed",
        "rollout_error",
        "sandbox_start_failed",
        "sandbox_lost",
        "desktop_broken",
        "setup_failed",
        "setup_interrupted",
        "evaluation_interrupted",
        "cancelled",
        "superseded",
        "reconciled",
    }
    assert set(ELIGIBLE) == {
        "agent_done",
        "agent_fail",
        "environment_done",
        "max_steps",
        "model_response_unparseable",
        "model_output_truncated",
        "model_response_empty",
        "model_response_invalid",
        "model_context_overflow",
    }
    assert INCOMPLETE == ("evaluation_incomplete", "rollout_state_incomplete")
    assert VALID == "valid_evaluated_outcome"


# the order of reasons, from the strongest
UPSTREAM_ORDER = [
    Infra.TIMEOUT,
    Infra.MODEL_TIMEOUT,
    Infra.EVALUATOR_ERROR,
    Infra.PROXY_SETUP_ERROR,
    Infra.MODEL_CALL_FAILED,
    Infra.ROLLOUT_ERROR,
]


@pytest.mark.parametrize(("stronger", "weaker"), list(itertools.combinations(UPSTREAM_ORDER, 2)))
def test_the_stronger_reason_names_the_ending(stronger: Infra, weaker: Infra) -> None:
    assert first_reason([weaker, stronger]) is stronger
    assert first_reason([stronger, weaker]) is stronger


def test_action_and_model_timeouts_rank_alike_below_the_deadline() -> None:
    for timeout in (Infra.MODEL_TIMEOUT, Infra.ACTION_TIMEOUT):
        assert first_reason([timeout, Infra.TIMEOUT]) is Infra.TIMEOUT
        assert first_reason([Infra.EVALUATOR_ERROR, timeout]) is timeout


def test_every_reason_has_exactly_one_rank() -> None:
    assert sorted(PRECEDENCE) == sorted(Infra)
    assert first_reason([]) is None


@given(st.lists(st.sampled_from(Infra), min_size=1))
def test_the_order_in_which_things_failed_does_not_matter(reasons: list[Infra]) -> None:
    assert first_reason(reasons) is first_reason(sorted(reasons))
    assert first_reason(reasons) in reasons


# the rules for a new attempt, one by one
YES = {
    Infra.SANDBOX_START_FAILED,
    Infra.SANDBOX_LOST,
    Infra.SETUP_INTERRUPTED,
    Infra.EVALUATION_INTERRUPTED,
    Infra.MODEL_CALL_FAILED,
    Infra.TASK_TIMEOUT,
    Infra.RECONCILED,
}


@pytest.mark.parametrize("reason", Infra)
def test_which_endings_earn_a_new_attempt(reason: Infra) -> None:
    earned = earns_new_attempt(reason, guest_failed=False, same_before=0, attempts=1, budget=3)
    assert earned is (reason in YES or reason is Infra.SETUP_FAILED)
    assert (reason in YES) is (reason in RETRYABLE)


@pytest.mark.parametrize(("worth", "earned"), [("mask", False), ("zero_reward", False), ("retry", True)])
def test_a_broken_desktop_earns_one_only_where_the_contract_says_so(worth: Any, earned: bool) -> None:
    said = {"guest_failed": True, "same_before": 0, "budget": 3, "on_desktop_broken": worth}
    assert earns_new_attempt(Infra.DESKTOP_BROKEN, attempts=1, **said) is earned
    assert not earns_new_attempt(Infra.DESKTOP_BROKEN, attempts=3, **said)


HOST, GUEST, UNKNOWN = Cause(kind="host"), Cause(kind="guest"), Cause()


@pytest.mark.parametrize(
    ("reasons", "acted", "cause", "tampered", "ending"),
    [
        ([], True, None, False, None),
        ([Infra.SANDBOX_LOST], True, HOST, False, Infra.SANDBOX_LOST),
        ([Infra.SANDBOX_LOST], True, UNKNOWN, False, Infra.SANDBOX_LOST),
        ([Infra.SANDBOX_LOST], True, GUEST, False, Infra.DESKTOP_BROKEN),
        ([Infra.SANDBOX_LOST], False, GUEST, False, Infra.SANDBOX_LOST),
        # whatever else went wrong with it: the name of an ending is not the policy's choice
        ([Infra.EVALUATOR_ERROR], True, GUEST, False, Infra.DESKTOP_BROKEN),
        ([Infra.TIMEOUT, Infra.MODEL_CALL_FAILED], True, GUEST, False, Infra.DESKTOP_BROKEN),
        # a desktop that was sound when it was evaluated may end afterwards
        ([], True, GUEST, False, None),
        # an activity saw the guest misbehave: before the first action that is an accident
        ([Infra.DESKTOP_BROKEN], True, UNKNOWN, False, Infra.DESKTOP_BROKEN),
        ([Infra.DESKTOP_BROKEN], False, UNKNOWN, False, Infra.SANDBOX_LOST),
        # another guest server than the image's: nothing it says counts
        ([], True, None, True, Infra.DESKTOP_BROKEN),
        ([], False, None, True, Infra.SANDBOX_LOST),
        # a restart from outside loses the desktop
        ([Infra.SANDBOX_LOST], True, HOST, True, Infra.SANDBOX_LOST),
        ([Infra.SUPERSEDED], True, GUEST, True, Infra.SUPERSEDED),
    ],
)
def test_whose_doing_a_failure_was_names_the_ending(
    reasons: list[Infra], acted: bool, cause: Cause | None, tampered: bool, ending: Infra | None
) -> None:
    assert first_reason(name_breakage(reasons, acted=acted, cause=cause, tampered=tampered)) is ending


def test_an_evaluator_error_earns_one_only_when_the_guest_could_not_be_reached() -> None:
    assert earns_new_attempt(Infra.EVALUATOR_ERROR, guest_failed=True, same_before=0, attempts=1, budget=3)
    assert not earns_new_attempt(Infra.EVALUATOR_ERROR, guest_failed=False, same_before=0, attempts=1, budget=3)


def test_setup_that_fails_again_is_the_tasks_own_fault() -> None:
    assert earns_new_attempt(Infra.SETUP_FAILED, guest_failed=False, same_before=0, attempts=1, budget=3)
    assert not earns_new_attempt(Infra.SETUP_FAILED, guest_failed=False, same_before=1, attempts=2, budget=3)


def test_a_failed_guest_during_evaluation_changes_nothing_for_other_reasons() -> None:
    for reason in (None, Infra.TIMEOUT, Infra.CANCELLED, Infra.ACTION_TIMEOUT):
        assert not earns_new_attempt(reason, guest_failed=True, same_before=0, attempts=1, budget=3)


@given(st.none() | st.sampled_from(Infra), st.booleans(), st.integers(0, 5), st.integers(1, 9), st.integers(1, 9))
def test_the_budget_bounds_attempts(
    reason: Infra | None, guest_failed: bool, same_before: int, attempts: int, budget: int
) -> None:
    earned = earns_new_attempt(
        reason, guest_failed=guest_failed, same_before=same_before, attempts=attempts, budget=budget
    )
    if earned:
        assert reason is not None
        assert attempts < budget


@pytest.mark.parametrize(
    ("score", "binary"), [(0.0, 0.0), (0.5, 0.0), (math.nextafter(1, 0), 0.0), (1.0, 1.0), (1, 1.0), (None, None)]
)
def test_reward_follows_the_score(score: float | None, binary: float | None) -> None:
    assert reward_of(score, "binary") == binary
    assert reward_of(score, "raw") == score


def test_nothing_evaluated_is_never_zero() -> None:
    assert reward_of(None, "binary") is None
    assert reward_of(None, "raw") is None
