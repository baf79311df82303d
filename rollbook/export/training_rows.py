"""Rows of the training export: one per model call, as docs/reference/training-export.md describes them."""

from typing import Any

from models.identity import canonical_json
from rollbook.evidence.load import CallEvidence, Loaded
from rollbook.evidence.segments import Placed, place
from rollbook.ledger.reader import Row

SCHEMA = "rollbook-training-v2"

_CALL = (
    "step",
    "parse_attempt",
    "policy_kind",
    "completed",
    "accepted",
    "actions",
    "terminal_action",
    "policy_stop_reason",
    "parse_error",
    "failure_kind",
    "finish_reason",
    "model_name",
    "model_version",
    "prompt_tokens",
    "completion_tokens",
    "latency_s",
)


def rows_of(loaded: Loaded, member: Row) -> list[dict[str, Any]]:
    """The rows of one rollout's selected attempt. `member`: its group statistics (`training_rows` of the ledger)."""
    head = rollout_head(loaded, member)
    placed = {one.call.model_call_id: one for one in place(loaded.trajectory_id, loaded.generations)}
    return [
        {**head, **_call_row(loaded, call, placed.get(call.model_call_id), head["trainable"])} for call in loaded.calls
    ]


def rollout_head(loaded: Loaded, member: Row) -> dict[str, Any]:
    """What all rows of a rollout share."""
    attempt = loaded.attempt
    rollout, outcome, contract = attempt.rollout, attempt.outcome or {}, attempt.contract
    runtime, training = attempt.decision("runtime"), attempt.decision("training")
    return {
        "schema": SCHEMA,
        "batch_id": rollout["batch_id"],
        "contract_digest": rollout["contract_digest"],
        "agent_contract_id": contract.agent_contract_id,
        "rollout_purpose": contract.purpose,
        "policy": contract.policy.name,
        "rollout_key": attempt.key,
        "domain": rollout["domain"],
        "task_id": rollout["task_id"],
        "task_digest": rollout["task_digest"],
        "sample": rollout["sample"],
        "identity": loaded.identity | {"source": rollout["identity_source"]},
        "trajectory_id": loaded.trajectory_id,
        "execution_id": str(attempt.attempt["execution_id"]),
        "group": {
            "planned": member["group_planned"],
            "members": member["group_members"],
            "valid": member["group_valid"],
            "baseline": member["group_baseline"],
            "advantage": member["group_advantage"],
        },
        "outcome": {
            name: outcome.get(name)
            for name in ("termination_reason", "score", "reward", "reward_mode", "steps", "horizon_reached")
        },
        "runtime_admission": {name: runtime[name] for name in ("admitted", "reason", "policy_id")},
        "training_admission": {name: training[name] for name in ("admitted", "reason", "policy_id")},
        "mask_sample": not runtime["admitted"],
        "trainable": bool(member["trainable"]),
        "exact_trace": {
            "evidence_complete": loaded.evidence_complete,
            "incomplete_reasons": loaded.incomplete_reasons,
        },
    }


def _call_row(loaded: Loaded, call: CallEvidence, placed: Placed | None, trainable: bool) -> dict[str, Any]:
    row, prompt = call.row, call.prompt or {}
    return {
        "model_call_id": call.model_call_id,
        "turn_id": call.turn_id,
        "call": {name: row[name] for name in _CALL},
        "said": {name: value for name, value in call.said.items() if name != "kept_text"},
        "messages": prompt.get("messages"),
        "tools": prompt.get("tools"),
        "sampling": {name: value for name, value in prompt.items() if name not in ("messages", "tools")},
        "media": call.media,
        "history": call.telemetry.get("history"),
        "tokens": call.tokens.to_json(),
        "routed_experts": call.tokens.routed_experts,
        "loss_spans": loss_spans(call) if trainable else [],
        "segment": None
        if placed is None
        else {
            "index": placed.segment_index,
            "id": placed.segment_id,
            "append_compatible": placed.append_compatible,
            "delta_start": placed.delta_start,
            "view_digest": placed.view_digest,
        },
        "evidence": {
            "complete": call.turn_id is not None and not call.reasons,
            "incomplete_reasons": call.reasons,
            "prompt_sha256": row["prompt_sha256"],
            "response_sha256": row["response_sha256"],
            "tokens_sha256": row["tokens_sha256"],
            "image_sha256": row["image_sha256"],
        },
    }


def loss_spans(call: CallEvidence) -> list[list[int]]:
    """Half-open ranges of the sampled tokens that bear loss: all of them, or none of an incomplete call."""
    sampled = call.tokens.sampled_token_ids
    if call.turn_id is None or call.reasons or not sampled:
        return []
    return [[0, len(sampled)]]


def source_of(loaded: Loaded, member: Row) -> str:
    """What the rows are made from, as text: equal text, equal rows. Cheaper than the rows, and enough to resume by."""
    calls = [
        [call.row["row_digest"], call.reasons, call.row["prompt_sha256"], call.row["tokens_sha256"]]
        for call in loaded.calls
    ]
    return canonical_json([rollout_head(loaded, member), calls])
