"""What decides the actions: one class per policy kind, chosen by the contract."""

from rollbook.policies.base import Answer, Policy, Turn
from rollbook.policies.registry import policy_for

__all__ = ["Answer", "Policy", "Turn", "policy_for"]
