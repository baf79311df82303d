"""Admission: may a rollout be counted or trained on? A revisable decision over recorded facts, kept append-only."""

from enum import StrEnum

from models.base import Wire
from models.outcome import Classification

RUNTIME_POLICY = "osworld-runtime-admission-v1"
"""Policy id of the decision made when an attempt ends (upstream contract §1.4)."""

LEGACY_POLICY = "legacy-mask-sample-v1"
"""Policy id of imported rows that carry only `mask_sample`."""

RECONCILED_POLICY = "rollbook-reconciliation-v1"
"""Policy id of decisions for rows closed by the Janitor or a cancel, without a running episode."""


class Scope(StrEnum):
    """What a decision is about."""

    RUNTIME = "runtime"  # may the outcome be counted
    TRAINING = "training"  # may its evidence be trained on


class AdmissionDecision(Wire):
    """One decision on one attempt."""

    scope: Scope = Scope.RUNTIME
    policy_id: str = RUNTIME_POLICY
    admitted: bool = False
    reason: str = "evaluation_incomplete"


def decide_runtime(classification: Classification) -> AdmissionDecision:
    """The runtime decision is the classification itself: `mask_sample == not runtime_eligible`."""
    return AdmissionDecision(admitted=classification.runtime_eligible, reason=classification.runtime_admission_reason)
