"""The ledger's tables. Rules that a database can hold are named checks here; the rest is in `sql/guards.sql`."""

from rollbook.ledger.tables.attempts import admission, attempt, evaluation, outcome, sandbox, sighting
from rollbook.ledger.tables.base import metadata
from rollbook.ledger.tables.catalog import (
    artifact,
    policy_script,
    policy_script_name,
    task,
    task_set,
    task_set_member,
)
from rollbook.ledger.tables.evidence import model_call, turn
from rollbook.ledger.tables.plan import batch, registration, rerun_request, rollout

INSERT_ONLY = (
    artifact,
    task,
    task_set,
    task_set_member,
    policy_script,
    policy_script_name,
    registration,
    rerun_request,
    attempt,
    evaluation,
    outcome,
    admission,
    turn,
    model_call,
)
"""Rows of these are never changed or deleted, by any role."""

__all__ = [
    "INSERT_ONLY",
    "admission",
    "artifact",
    "attempt",
    "batch",
    "evaluation",
    "metadata",
    "model_call",
    "outcome",
    "policy_script",
    "policy_script_name",
    "registration",
    "rerun_request",
    "rollout",
    "sandbox",
    "sighting",
    "task",
    "task_set",
    "task_set_member",
    "turn",
]
