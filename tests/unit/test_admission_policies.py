"""The named policies as tables: what each of them says about recorded facts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.admission import POLICIES, AdmissionFacts, Scope

VALID: dict[str, Any] = {"runtime_eligible": True, "runtime_admission_reason": "valid_evaluated_outcome"}
ADMITTED = VALID | {"runtime_admitted": True}
TRAINERS = ADMITTED | {"identity_source": "caller"}

RUNTIME, DOUBT = "osworld-runtime-admission-v1", "exclude-in-doubt-v1"
TRAINING, EXACT = "rollbook-training-admission-v1", "rollbook-exact-training-admission-v1"


@pytest.mark.parametrize(
    ("policy_id", "facts", "admitted", "reason"),
    [
        (RUNTIME, {}, False, "evaluation_incomplete"),
        (RUNTIME, VALID, True, "valid_evaluated_outcome"),
        (RUNTIME, VALID | {"in_doubt": 3}, True, "valid_evaluated_outcome"),
        (RUNTIME, {"runtime_admission_reason": "timeout", "runtime_admitted": True}, False, "timeout"),
        (DOUBT, VALID, True, "valid_evaluated_outcome"),
        (DOUBT, VALID | {"in_doubt": 1}, False, "action_in_doubt"),
        (DOUBT, {"runtime_admission_reason": "timeout", "in_doubt": 1}, False, "timeout"),
        (TRAINING, ADMITTED, False, "caller_owned_rollout_identity_unavailable"),
        (TRAINING, VALID | {"identity_source": "caller"}, False, "rollout_sample_masked"),
        (TRAINING, TRAINERS, True, "valid_training_sample"),
        (TRAINING, TRAINERS | {"replies": 2, "replies_without_tokens": 2}, True, "valid_training_sample"),
        (EXACT, TRAINERS, False, "model_call_evidence_unavailable"),
        (EXACT, TRAINERS | {"replies": 2, "replies_without_tokens": 1}, False, "exact_sampled_token_ids_unavailable"),
        (EXACT, TRAINERS | {"replies": 2}, True, "valid_training_sample"),
        (EXACT, ADMITTED | {"replies": 2}, False, "caller_owned_rollout_identity_unavailable"),
    ],
)
def test_policies(policy_id: str, facts: dict[str, Any], admitted: bool, reason: str) -> None:
    decision = POLICIES[policy_id].decide(AdmissionFacts(**facts))
    assert (decision.admitted, decision.reason, decision.policy_id) == (admitted, reason, policy_id)


def test_policy_ids_and_scopes_are_frozen() -> None:
    assert {policy.policy_id: policy.scope for policy in POLICIES.values()} == {
        RUNTIME: Scope.RUNTIME,
        DOUBT: Scope.RUNTIME,
        TRAINING: Scope.TRAINING,
        EXACT: Scope.TRAINING,
    }


FACTS = st.builds(
    AdmissionFacts,
    runtime_eligible=st.booleans(),
    runtime_admission_reason=st.sampled_from(["valid_evaluated_outcome", "timeout"]),
    runtime_admitted=st.booleans(),
    identity_source=st.sampled_from(["derived", "caller"]),
    in_doubt=st.integers(0, 3),
    replies=st.integers(0, 3),
    replies_without_tokens=st.integers(0, 3),
)


@given(FACTS)
def test_the_stricter_policy_never_admits_more(facts: AdmissionFacts) -> None:
    said = {policy_id: policy.decide(facts).admitted for policy_id, policy in POLICIES.items()}
    assert said[DOUBT] <= said[RUNTIME] <= facts.runtime_eligible
    assert said[EXACT] <= said[TRAINING] <= (facts.identity_source == "caller" and facts.runtime_admitted)
