"""Admission: may a rollout be counted or trained on? A revisable decision over recorded facts, kept append-only.

A policy is a pure function of what the ledger recorded about an ended attempt. Every decision that it makes
carries its id; a rule that decides otherwise must get another id.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import Field

from models.base import Wire
from models.outcome import Classification

RUNTIME_POLICY = "osworld-runtime-admission-v1"
"""Policy id of the decision made when an attempt ends; see docs/reference/upstream-contract.md."""

LEGACY_POLICY = "legacy-mask-sample-v1"
"""Policy id of imported rows that carry only `mask_sample`."""

RECONCILED_POLICY = "rollbook-reconciliation-v1"
"""Policy id of decisions for rows closed by the Janitor or a cancel, without a running episode."""

EXCLUDE_IN_DOUBT_POLICY = "exclude-in-doubt-v1"
"""Policy id of a stricter runtime admission: also masks attempts with an action whose effect is unknown."""

TRAINING_POLICY = "rollbook-training-admission-v1"
"""Policy id of the training decision made when an attempt with a caller identity ends."""

EXACT_TRAINING_POLICY = "rollbook-exact-training-admission-v1"
"""Policy id of a stricter training admission: every reply must have its sampled tokens."""

IDENTITY_UNAVAILABLE = "caller_owned_rollout_identity_unavailable"
SAMPLE_MASKED = "rollout_sample_masked"
"""Reasons against training, in upstream's words."""


class Scope(StrEnum):
    """Subject of a decision."""

    RUNTIME = "runtime"  # may the outcome be counted
    TRAINING = "training"  # may its evidence be trained on


class AdmissionDecision(Wire):
    """One decision on one attempt."""

    scope: Scope = Scope.RUNTIME
    policy_id: str = RUNTIME_POLICY
    admitted: bool = False
    reason: str = "evaluation_incomplete"


class AdmissionFacts(Wire):
    """Input of the policies: the recorded end of an attempt, and counts over its evidence. By default not admitted."""

    runtime_eligible: bool = False
    """The recorded classification of the facts; never changes."""
    runtime_admission_reason: str = "evaluation_incomplete"
    runtime_admitted: bool = False
    """The runtime decision in force."""
    identity_source: Literal["derived", "caller"] = "derived"
    in_doubt: int = Field(default=0, ge=0)
    """Actions whose effect is unknown."""
    replies: int = Field(default=0, ge=0)
    """Model calls that returned a reply."""
    replies_without_tokens: int = Field(default=0, ge=0)
    """Those of them without sampled token ids and logprobs."""


def decide_runtime(classification: Classification) -> AdmissionDecision:
    """Admit exactly the eligible attempts: `mask_sample == not runtime_eligible`."""
    return AdmissionDecision(admitted=classification.runtime_eligible, reason=classification.runtime_admission_reason)


def _classified(facts: AdmissionFacts) -> tuple[bool, str]:
    return facts.runtime_eligible, facts.runtime_admission_reason


def _without_doubt(facts: AdmissionFacts) -> tuple[bool, str]:
    if facts.runtime_eligible and facts.in_doubt:
        return False, "action_in_doubt"
    return _classified(facts)


def _trainable(facts: AdmissionFacts) -> tuple[bool, str]:
    if facts.identity_source != "caller":
        return False, IDENTITY_UNAVAILABLE
    if not facts.runtime_admitted:
        return False, SAMPLE_MASKED
    return True, "valid_training_sample"


def _exactly_trainable(facts: AdmissionFacts) -> tuple[bool, str]:
    admitted, reason = _trainable(facts)
    if admitted and facts.replies == 0:
        return False, "model_call_evidence_unavailable"
    if admitted and facts.replies_without_tokens:
        return False, "exact_sampled_token_ids_unavailable"
    return admitted, reason


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """A named rule with its scope and a description of one line."""

    policy_id: str
    scope: Scope
    description: str
    rule: Callable[[AdmissionFacts], tuple[bool, str]]

    def decide(self, facts: AdmissionFacts) -> AdmissionDecision:
        """The decision on one attempt."""
        admitted, reason = self.rule(facts)
        return AdmissionDecision(scope=self.scope, policy_id=self.policy_id, admitted=admitted, reason=reason)


POLICIES = {
    policy.policy_id: policy
    for policy in (
        AdmissionPolicy(RUNTIME_POLICY, Scope.RUNTIME, "the classification of the recorded facts", _classified),
        AdmissionPolicy(
            EXCLUDE_IN_DOUBT_POLICY,
            Scope.RUNTIME,
            "the same, but an action whose effect is unknown masks",
            _without_doubt,
        ),
        AdmissionPolicy(TRAINING_POLICY, Scope.TRAINING, "admitted, and the identity is a trainer's", _trainable),
        AdmissionPolicy(
            EXACT_TRAINING_POLICY,
            Scope.TRAINING,
            "the same, and every reply has its sampled tokens",
            _exactly_trainable,
        ),
    )
}
"""The policies that can decide a whole batch, by id."""
