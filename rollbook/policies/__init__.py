"""Policies decide the actions: one class per policy kind, chosen by the contract."""

from rollbook.policies.base import Answer, CallLog, Policy, Turn
from rollbook.policies.registry import policy_for

__all__ = ["Answer", "CallLog", "Policy", "Turn", "policy_for"]
