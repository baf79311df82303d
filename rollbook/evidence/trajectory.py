"""The semantic trajectory: what happened, for every policy, with or without token arrays, failed calls included."""

from collections import Counter
from typing import Any

from models.evidence import source_part
from models.identity import short_id
from rollbook.evidence.load import AttemptEvidence, CallEvidence
from rollbook.ledger.reader import Row
from rollbook.ledger.records import CallRecord

REJECTED = ("output_truncated", "empty_response", "unparseable")
"""Failures of a call that got its reply."""


def parse_failure(calls: list[CallRecord]) -> dict[str, Any] | None:
    """The record of a step's failures; None when there were none. The last fact decides admission, not this record."""
    failed = [call for call in calls if call.failure_kind is not None]
    if not failed:
        return None
    last = failed[-1]
    telemetry = last.telemetry or {}
    kind = last.failure_kind
    return {
        "attempt_count": len(calls),
        "completed_model_call_count": sum(call.completed for call in calls),
        "last_failure_stage": "response_parse" if kind in REJECTED else "model_call",
        "last_failure_kind": kind,
        "failure_kind_counts": dict(sorted(Counter(call.failure_kind for call in failed).items())),
        "prompt_shrink_events": sum((call.telemetry or {}).get("next_max_images") is not None for call in failed),
        "last_error_type": telemetry.get("error_type") or kind,
        "last_error": last.parse_error,
    }


def semantic_trajectory(loaded: AttemptEvidence) -> dict[str, Any]:
    """Contract, transitions and media arena, as plain JSON."""
    return {
        "trajectory_contract": trajectory_contract(loaded),
        "trajectory_transitions": transitions(loaded),
        "media_assets": media_assets(loaded),
    }


def trajectory_contract(loaded: AttemptEvidence) -> dict[str, Any]:
    """Identity, counts, and the two admissions apart; its id covers no physical execution."""
    attempt = loaded.attempt
    runtime, reasons = attempt.decision("runtime"), loaded.incomplete_reasons
    body = {
        "schema_version": 2,
        "mode": "osworld_semantic_trajectory",
        # The contract has a schema version of its own.
        **{name: value for name, value in loaded.identity.items() if name != "schema_version"},
        "identity_source": attempt.rollout["identity_source"],
        "trajectory_id": loaded.trajectory_id,
        "model_name": attempt.policy.name,
        "agent_contract_id": attempt.contract.agent_contract_id,
        "transition_count": len(_steps(loaded)),
        "model_call_count": len(loaded.generations),
        "capabilities": {
            "semantic_trajectory": True,
            "exact_model_call_evidence": loaded.evidence_complete,
            "arbitrary_prompt_rewrites": True,
            "trainable_token_reconstruction": loaded.evidence_complete,
        },
        "runtime_admission": {
            "eligible": runtime["admitted"],
            "reason": runtime["reason"],
            "policy_id": runtime["policy_id"],
        },
        "exact_trace_admission": {
            "decision_owner": "training_consumer",
            "evidence_complete": loaded.evidence_complete,
            "caller_identity_available": attempt.rollout["identity_source"] == "caller",
            "incomplete_reasons": reasons,
        },
        "training_eligibility": {
            "status": "ineligible" if reasons else "requires_runtime_admission",
            "incomplete_reasons": reasons,
        },
    }
    return body | {"trajectory_contract_id": short_id("trajectory-contract", body)}


def transitions(loaded: AttemptEvidence) -> list[dict[str, Any]]:
    """One per step of the environment; the last one carries the reward."""
    outcome = loaded.attempt.outcome or {}
    eligible = bool(loaded.attempt.decision("runtime")["admitted"])
    turns = {turn["step"]: turn for turn in loaded.attempt.turns}
    steps = _steps(loaded)
    made = []
    for step in steps:
        last = step == steps[-1]
        calls = [call for call in loaded.calls if call.record.step == step]
        made.append(
            {
                "transition_id": short_id("transition", loaded.trajectory_id, step - 1),
                "turn_id": step,
                "state": {
                    "observation": _observation(turns.get(step - 1)),
                    "model_call_ids": [call.model_call_id for call in calls if call.turn_id is not None],
                },
                "action": _action(calls),
                "parse_failure": parse_failure([call.record for call in calls]),
                # The score judges the episode: no earlier step has a reward.
                "reward": outcome.get("reward") if last else 0.0,
                # the last step may end the episode without a further look
                "next_state": {"observation": _observation(turns.get(step))},
                "done": last,
                "eligible": eligible,
                "runtime_eligible": eligible,
            }
        )
    return made


def media_assets(loaded: AttemptEvidence) -> list[dict[str, Any]]:
    """Every image once; its bytes are the artifact with the content digest."""
    return [
        {
            "media_id": one["media_id"],
            "content_digest": one["sha256"],
            "source_part": source_part(one["sha256"]),
            "original_dimensions": None,
            "color_mode": None,
            "source_format": None,
            "sent_size": [one["width"], one["height"]],
        }
        for _, one in sorted(loaded.media.items())
    ]


def _steps(loaded: AttemptEvidence) -> list[int]:
    return sorted({call.record.step for call in loaded.calls})


def _observation(turn: Row | None) -> dict[str, Any] | None:
    if turn is None:
        return None
    names = ("screenshot_sha256", "accessibility_tree_sha256", "terminal_sha256")
    return {name: turn[name] for name in names if turn[name] is not None}


def _action(calls: list[CallEvidence]) -> dict[str, Any]:
    decided = [call for call in calls if call.record.accepted]
    if not decided:
        # No reply was accepted: the last one shows why.
        last = calls[-1]
        return {
            "raw_completion": last.said.get("content"),
            "parsed_actions": [],
            "terminal_action": None,
            "policy_stop_reason": last.record.policy_stop_reason,
            "accepted_model_call_id": None,
        }
    # A step has one accepted call; the last one, should records disagree.
    call = decided[-1]
    return {
        "raw_completion": call.said.get("content"),
        "parsed_actions": call.record.actions,
        "terminal_action": call.record.terminal_action,
        "policy_stop_reason": None,
        "accepted_model_call_id": call.model_call_id,
    }
