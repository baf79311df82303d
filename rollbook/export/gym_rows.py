"""NeMo-Gym's rows of a rollout: input, result, failure (upstream contract §1.9, §2.2)."""

from typing import Any

from models.contract import Contract
from models.identity import trajectory_rollout_id
from rollbook.evidence.exact import exact_envelope
from rollbook.evidence.load import CallEvidence, Loaded
from rollbook.evidence.trajectory import semantic_trajectory
from rollbook.ledger.reader import Row

AGENT_REF = {"type": "responses_api_agents", "name": "rollbook_osworld"}

NO_ENVELOPE: dict[str, Any] = {
    "context_compaction_contract": None,
    "model_call_metadata": [],
    "boundary_events": [],
    "lineage_deltas": [],
    "final_policy_decision": None,
    "evidence_digest": None,
}
"""What stands for the exact envelope of an attempt whose evidence is incomplete."""


def input_row(rollout: Row, contract: Contract, task_index: int) -> dict[str, Any]:
    """The materialised input of one planned rollout: as a trainer would dispatch it, its first attempt."""
    identity = {"rollout_id": trajectory_rollout_id(rollout, contract.policy.name, 1), "attempt_index": 0}
    return _common(rollout, contract, task_index) | _caller(rollout, identity)


def _common(rollout: Row, contract: Contract, task_index: int) -> dict[str, Any]:
    document = rollout["document"]
    return {
        "_ng_task_index": task_index,
        "_ng_rollout_index": rollout["sample"],
        "_ng_rollout_id": rollout["rollout_key"],
        "agent_ref": AGENT_REF,
        "responses_create_params": _parameters(document, contract),
        "rollout_purpose": contract.purpose,
        "verifier_metadata": {
            "task_id": rollout["task_id"],
            "domain": rollout["domain"],
            "osworld_task": document,
        },
    }


def _caller(rollout: Row, attempt: dict[str, Any]) -> dict[str, Any]:
    """The identity that a trainer gave, whole; nothing where it is derived: such a row has none to give."""
    if rollout["identity_source"] != "caller":
        return {}
    names = ("group_id", "task_id", "rollout_index", "sampling_event_id", "source_group_id")
    return {"trajectory_identity": {"schema_version": 1, **attempt, **{name: rollout[name] for name in names}}}


def result_row(loaded: Loaded, task_index: int) -> dict[str, Any]:
    """The result of one attempt. A reward that does not exist is 0.0 and masked, as Gym writes it; the score stays
    null."""
    attempt = loaded.attempt
    rollout, outcome, contract = attempt.rollout, attempt.outcome or {}, attempt.contract
    runtime = attempt.decision("runtime")
    training = attempt.decision("training")
    eligible = bool(runtime["admitted"])
    row = _common(rollout, contract, task_index)
    return {
        **row,
        **_caller(rollout, {name: loaded.identity[name] for name in ("rollout_id", "attempt_index")}),
        **({"_ng_attempt_index": attempt.attempt_index - 1} if attempt.attempt_index > 1 else {}),
        "_ng_execution_id": _execution_id(loaded),
        "reward": 0.0 if outcome.get("reward") is None else outcome["reward"],
        "response": _response(loaded),
        "verifier_metadata": row["verifier_metadata"] | _verified(loaded),
        "horizon_reached": outcome.get("horizon_reached", False),
        "evaluation_completed": outcome.get("evaluation_completed", False),
        "runtime_eligible": eligible,
        "runtime_admission_reason": runtime["reason"],
        "runtime_admission_policy_id": runtime["policy_id"],
        "mask_sample": not eligible,
        "training_admitted": bool(training["admitted"]),
        "training_admission_reason": training["reason"],
        "training_admission_policy_id": training["policy_id"],
    }


def failure_row(loaded: Loaded, task_index: int, *, terminal: bool) -> dict[str, Any]:
    """A masked attempt, for the sidecar. `terminal`: it is the result of its rollout."""
    outcome = loaded.attempt.outcome or {}
    return {
        **result_row(loaded, task_index),
        "_ng_failure_class": "masked_sample",
        "_ng_failure_terminal": terminal,
        "failure_kind": outcome.get("termination_reason"),
        "failure_reason": outcome.get("detail") or outcome.get("termination_reason"),
    }


def replaced_row(loaded: Loaded, task_index: int) -> dict[str, Any]:
    """An attempt that was admitted and no longer is its rollout's result: a rerun that supersedes it was asked for.

    It is not measured again, so it goes to the sidecar; its own facts and its decision stay what they are.
    """
    return {
        **result_row(loaded, task_index),
        "_ng_failure_class": "replaced_by_rerun",
        "_ng_failure_terminal": False,
        "failure_kind": "replaced_by_rerun",
        "failure_reason": "admitted, and replaced by a rerun that supersedes it",
    }


def _verified(loaded: Loaded) -> dict[str, Any]:
    """What the result adds to `verifier_metadata`. Artifacts are named by digest, in no directory; nothing here runs
    through a proxy for tasks."""
    attempt = loaded.attempt
    outcome, runtime = attempt.outcome or {}, attempt.decision("runtime")
    return {
        "osworld_score": outcome.get("score"),
        "osworld_finished": outcome.get("terminal_action") is not None,
        "osworld_horizon_reached": outcome.get("horizon_reached", False),
        "osworld_evaluation_completed": outcome.get("evaluation_completed", False),
        "osworld_runtime_eligible": bool(runtime["admitted"]),
        "osworld_runtime_admission_reason": runtime["reason"],
        "osworld_runtime_admission_policy_id": runtime["policy_id"],
        "osworld_error": outcome.get("detail") or None,
        "osworld_steps": _steps(loaded),
        "osworld_artifact_dir": None,
        "osworld_model_name": attempt.policy.name,
        "osworld_termination_reason": outcome.get("termination_reason"),
        "osworld_agent_contract_id": attempt.contract.agent_contract_id,
        "osworld_proxy_required": bool(attempt.rollout["document"].get("proxy", False)),
        "osworld_proxy_enabled": False,
        "osworld_proxy_configured": False,
    }


def _execution_id(loaded: Loaded) -> str:
    return f"execution-{loaded.attempt.attempt['execution_id'].hex}"


def _parameters(document: Row, contract: Contract) -> dict[str, Any]:
    sampling = contract.policy.sampling or {}
    return {
        "input": [{"role": "user", "content": document["instruction"]}],
        "model": contract.policy.name,
        "temperature": sampling.get("temperature"),
        "top_p": sampling.get("top_p"),
        "max_output_tokens": sampling.get("max_output_tokens"),
        "metadata": {"nemo_rl_rollout_purpose": contract.purpose},
    }


def _response(loaded: Loaded) -> dict[str, Any]:
    attempt = loaded.attempt
    ended = (attempt.outcome or {}).get("ended_at")
    return {
        "id": f"resp_{loaded.trajectory_id}",
        "object": "response",
        "created_at": ended.timestamp() if ended is not None else 0.0,
        "model": attempt.policy.name,
        "output": [_message(call) for call in loaded.generations],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "agent_contract": attempt.contract.agent_contract
        | {
            "agent_contract_id": attempt.contract.agent_contract_id,
            "rollout_purpose": attempt.contract.purpose,
            "parity_mode": attempt.policy.parity,
        },
        "execution_context": _execution_context(loaded),
        "model_call_summaries": [_summary(call) for call in loaded.calls],
        "chunk_records": [],
        "guard_records": [],
        **semantic_trajectory(loaded),
        **(exact_envelope(loaded) or NO_ENVELOPE),
    }


def _execution_context(loaded: Loaded) -> dict[str, Any]:
    """The physical execution beside the logical ids; a sampling event only where a trainer gave one."""
    names = ("sampling_event_id", "source_group_id", "rollout_id", "group_id", "task_id")
    return {"schema_version": 1, "execution_id": _execution_id(loaded)} | {
        name: loaded.identity.get(name) for name in names
    }


def _summary(call: CallEvidence) -> dict[str, Any]:
    """A model call without its prompt, reply and arrays; calls that got no reply are among them."""
    names = (
        "parse_attempt",
        "completed",
        "accepted",
        "parse_error",
        "failure_kind",
        "finish_reason",
        "policy_stop_reason",
        "model_name",
        "model_version",
        "prompt_tokens",
        "completion_tokens",
        "latency_s",
    )
    return {
        "model_call_id": call.model_call_id,
        "turn_id": call.turn_id,
        "environment_step": call.row["step"],
        **{name: call.row[name] for name in names},
        "media_ids": call.media_ids,
        "incomplete_reasons": call.reasons,
    }


def _message(call: CallEvidence) -> dict[str, Any]:
    """One assistant message per model call, its canonical token arrays with it."""
    tokens = call.tokens
    return {
        "id": call.model_call_id,
        "type": "message",
        "role": "assistant",
        "status": "incomplete" if call.row["finish_reason"] == "length" else "completed",
        "content": [{"type": "output_text", "text": call.said.get("content") or "", "annotations": []}],
        "prompt_token_ids": tokens.prompt_token_ids,
        "generation_token_ids": tokens.sampled_token_ids,
        "generation_log_probs": tokens.sampled_logprobs,
        **({} if tokens.routed_experts is None else {"routed_experts": tokens.routed_experts}),
    }


def _steps(loaded: Loaded) -> list[dict[str, Any]]:
    outcome = loaded.attempt.outcome or {}
    turns = {turn["step"]: turn for turn in loaded.attempt.turns}
    steps = sorted({call.row["step"] for call in loaded.calls})
    made = []
    for step in steps:
        calls = [call for call in loaded.calls if call.row["step"] == step]
        last = calls[-1].row
        done = step == steps[-1]
        said = [*last["actions"], *([last["terminal_action"]] if last["terminal_action"] else [])]
        made.append(
            {
                "step": step,
                "model_text": calls[-1].said.get("content"),
                "model_call_count": len(calls),
                "actions": said,
                "reward": (outcome.get("reward") or 0.0) if done else 0.0,
                "done": done,
                "info": {"policy_stop_reason": last["policy_stop_reason"]},
                "state": _state(turns.get(step - 1)),
                "next_state": _state(turns.get(step)),
            }
        )
    return made


def _state(turn: Row | None) -> dict[str, Any] | None:
    return None if turn is None else {name: turn[name] for name in ("screenshot_bytes", "screenshot_sha256")}
