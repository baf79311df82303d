"""The runtime admission decision follows from the classification alone."""

import pytest

from models.admission import LEGACY_POLICY, RECONCILED_POLICY, RUNTIME_POLICY, AdmissionDecision, Scope, decide_runtime
from models.outcome import POLICY_STOPS, Infra, OutcomeFacts, classify

FACTS = [
    OutcomeFacts(),
    OutcomeFacts(evaluation_completed=True),
    OutcomeFacts(evaluation_completed=True, terminal_action="DONE"),
    OutcomeFacts(evaluation_completed=True, horizon_reached=True),
    *[OutcomeFacts(evaluation_completed=True, policy_stop_reason=stop) for stop in POLICY_STOPS],
    *[OutcomeFacts(evaluation_completed=True, infrastructure_failure_reason=reason) for reason in Infra],
]


@pytest.mark.parametrize("facts", FACTS)
def test_admission_is_the_classification(facts: OutcomeFacts) -> None:
    classification = classify(facts)
    decision = decide_runtime(classification)
    assert decision.admitted is classification.runtime_eligible
    assert decision.reason == classification.runtime_admission_reason
    assert decision.scope is Scope.RUNTIME
    assert decision.policy_id == RUNTIME_POLICY


def test_a_fresh_decision_is_closed() -> None:
    assert AdmissionDecision().model_dump(mode="json") == {
        "scope": "runtime",
        "policy_id": "osworld-runtime-admission-v1",
        "admitted": False,
        "reason": "evaluation_incomplete",
    }


def test_policy_ids_are_frozen() -> None:
    assert RUNTIME_POLICY == "osworld-runtime-admission-v1"
    assert LEGACY_POLICY == "legacy-mask-sample-v1"
    assert RECONCILED_POLICY == "rollbook-reconciliation-v1"
