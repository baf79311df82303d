"""NeMo-Gym's rows of a rollout: input, result, failure (upstream contract §1.9, §2.2)."""

from typing import Any

from models.contract import agent_contract, agent_contract_id
from rollbook.evidence.exact import exact_envelope
from rollbook.evidence.load import Loaded
from rollbook.evidence.trajectory import semantic_trajectory
from rollbook.ledger.identity import policy_name
from rollbook.ledger.recorded import Row

AGENT_REF = {"type": "responses_api_agents", "name": "rollbook_osworld"}


def input_row(rollout: Row, document: Row, contract: Row, task_index: int) -> dict[str, Any]:
    """The materialised input of one planned rollout."""
    return {
        "_ng_task_index": task_index,
        "_ng_rollout_index": rollout["sample"],
        "_ng_rollout_id": rollout["rollout_key"],
        "agent_ref": AGENT_REF,
        "responses_create_params": _parameters(document, contract),
        "rollout_purpose": contract["purpose"],
        "verifier_metadata": {
            "task_id": rollout["task_id"],
            "domain": rollout["domain"],
            "osworld_task": document,
        },
    }


def result_row(loaded: Loaded, task_index: int) -> dict[str, Any]:
    """The result of one attempt. A reward that does not exist is 0.0 and masked, as Gym writes it; the score stays
    null."""
    attempt = loaded.attempt
    rollout, outcome, contract = attempt.rollout, attempt.outcome or {}, attempt.contract
    runtime = attempt.decision("runtime")
    eligible = bool(runtime["admitted"])
    document = rollout["document"]
    return {
        **input_row(rollout, document, contract, task_index),
        **({"_ng_attempt_index": attempt.attempt_index - 1} if attempt.attempt_index > 1 else {}),
        "_ng_execution_id": f"execution-{attempt.attempt['execution_id'].hex}",
        "reward": 0.0 if outcome.get("reward") is None else outcome["reward"],
        "response": _response(loaded),
        "verifier_metadata": {
            "task_id": rollout["task_id"],
            "domain": rollout["domain"],
            "osworld_task": document,
            "osworld_score": outcome.get("score"),
            "osworld_finished": outcome.get("terminal_action") is not None,
            "osworld_horizon_reached": outcome.get("horizon_reached", False),
            "osworld_evaluation_completed": outcome.get("evaluation_completed", False),
            "osworld_runtime_eligible": eligible,
            "osworld_runtime_admission_reason": runtime["reason"],
            "osworld_runtime_admission_policy_id": runtime["policy_id"],
            "osworld_error": outcome.get("detail") or None,
            "osworld_steps": _steps(loaded),
            "osworld_model_name": policy_name(contract),
            "osworld_termination_reason": outcome.get("termination_reason"),
            "osworld_agent_contract_id": agent_contract_id(contract),
        },
        "horizon_reached": outcome.get("horizon_reached", False),
        "evaluation_completed": outcome.get("evaluation_completed", False),
        "runtime_eligible": eligible,
        "runtime_admission_reason": runtime["reason"],
        "runtime_admission_policy_id": runtime["policy_id"],
        "mask_sample": not eligible,
    }


def failure_row(loaded: Loaded, task_index: int, *, terminal: bool) -> dict[str, Any]:
    """A masked attempt, for the sidecar."""
    outcome = loaded.attempt.outcome or {}
    return {
        **result_row(loaded, task_index),
        "_ng_failure_class": "masked_sample",
        "_ng_failure_terminal": terminal,
        "failure_kind": outcome.get("termination_reason"),
        "failure_reason": outcome.get("detail") or outcome.get("termination_reason"),
    }


def _parameters(document: Row, contract: Row) -> dict[str, Any]:
    sampling = contract["policy"].get("sampling") or {}
    return {
        "input": [{"role": "user", "content": document["instruction"]}],
        "model": policy_name(contract),
        "temperature": sampling.get("temperature"),
        "top_p": sampling.get("top_p"),
        "max_output_tokens": sampling.get("max_output_tokens"),
        "metadata": {"nemo_rl_rollout_purpose": contract["purpose"]},
    }


def _response(loaded: Loaded) -> dict[str, Any]:
    attempt = loaded.attempt
    ended = (attempt.outcome or {}).get("ended_at")
    return {
        "id": f"resp_{loaded.trajectory_id}",
        "object": "response",
        "created_at": ended.timestamp() if ended is not None else 0.0,
        "model": policy_name(attempt.contract),
        "output": [_message(call) for call in loaded.generations],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "agent_contract": agent_contract(attempt.contract)
        | {
            "agent_contract_id": agent_contract_id(attempt.contract),
            "rollout_purpose": attempt.contract["purpose"],
            "parity_mode": attempt.contract["policy"].get("parity"),
        },
        **semantic_trajectory(loaded),
        **(exact_envelope(loaded) or {}),
    }


def _message(call: Any) -> dict[str, Any]:
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
    return None if turn is None else {"screenshot_sha256": turn["screenshot_sha256"]}
