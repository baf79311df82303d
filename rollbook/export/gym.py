"""The NeMo-Gym export: `<stem>.jsonl`, its failures, its inputs, its metrics.

Rows go to disk as they are made, one attempt at a time: what is held in memory is the evidence of one attempt.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.contract import Contract
from models.identity import trajectory_rollout_id
from rollbook.errors import InvalidInput
from rollbook.evidence.exact import exact_envelope
from rollbook.evidence.load import Artifacts, AttemptEvidence, CallEvidence, load_calls, require_played
from rollbook.evidence.trajectory import semantic_trajectory
from rollbook.export.files import FileSet, line, parent_of
from rollbook.export.training import CALL_COLUMNS
from rollbook.ledger import Ledger
from rollbook.ledger.reader import Reader, RecordedAttempt, Row

AGENT_REF = {"type": "responses_api_agents", "name": "rollbook_osworld"}

NO_ENVELOPE: dict[str, Any] = {
    "context_compaction_contract": None,
    "model_call_metadata": [],
    "boundary_events": [],
    "lineage_deltas": [],
    "final_policy_decision": None,
    "evidence_digest": None,
}
"""Members of an attempt without an exact envelope: its evidence is incomplete."""


def input_row(rollout: Row, contract: Contract, task_index: int) -> dict[str, Any]:
    """The materialised input of one planned rollout: as a trainer would dispatch it, its first attempt."""
    # Ids of the first attempt: what a trainer dispatches has no others yet.
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


def result_row(loaded: AttemptEvidence, task_index: int) -> dict[str, Any]:
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


def failure_row(loaded: AttemptEvidence, task_index: int, *, terminal: bool) -> dict[str, Any]:
    """A masked attempt, for the sidecar. `terminal`: it is the result of its rollout."""
    outcome = loaded.attempt.outcome or {}
    return {
        **result_row(loaded, task_index),
        "_ng_failure_class": "masked_sample",
        "_ng_failure_terminal": terminal,
        "failure_kind": outcome.get("termination_reason"),
        "failure_reason": outcome.get("detail") or outcome.get("termination_reason"),
    }


def replaced_row(loaded: AttemptEvidence, task_index: int) -> dict[str, Any]:
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


def _verified(loaded: AttemptEvidence) -> dict[str, Any]:
    """Members that the result adds to `verifier_metadata`. Artifacts are named by digest, in no directory;
    nothing here runs through a proxy for tasks."""
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


def _execution_id(loaded: AttemptEvidence) -> str:
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


def _response(loaded: AttemptEvidence) -> dict[str, Any]:
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


def _execution_context(loaded: AttemptEvidence) -> dict[str, Any]:
    """The physical execution beside the logical ids; a sampling event only where a trainer gave one."""
    names = ("sampling_event_id", "source_group_id", "rollout_id", "group_id", "task_id")
    return {"schema_version": 1, "execution_id": _execution_id(loaded)} | {
        name: loaded.identity.get(name) for name in names
    }


# A summary gives the step as `environment_step`; the steps of the rollout give the actions, the contract the policy.
_CALL_FACTS = [name for name in CALL_COLUMNS if name not in ("step", "policy_kind", "actions", "terminal_action")]


def _summary(call: CallEvidence) -> dict[str, Any]:
    """A model call without its prompt, reply and arrays; calls that got no reply are among them."""
    return {
        "model_call_id": call.model_call_id,
        "turn_id": call.turn_id,
        "environment_step": call.record.step,
        **{name: getattr(call.record, name) for name in _CALL_FACTS},
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
        "status": "incomplete" if call.record.finish_reason == "length" else "completed",
        "content": [{"type": "output_text", "text": call.said.get("content") or "", "annotations": []}],
        "prompt_token_ids": tokens.prompt_token_ids,
        "generation_token_ids": tokens.sampled_token_ids,
        "generation_log_probs": tokens.sampled_logprobs,
        **({} if tokens.routed_experts is None else {"routed_experts": tokens.routed_experts}),
    }


def _steps(loaded: AttemptEvidence) -> list[dict[str, Any]]:
    outcome = loaded.attempt.outcome or {}
    turns = {turn["step"]: turn for turn in loaded.attempt.turns}
    steps = sorted({call.record.step for call in loaded.calls})
    made = []
    for step in steps:
        calls = [call for call in loaded.calls if call.record.step == step]
        last = calls[-1].record
        done = step == steps[-1]
        said = [*last.actions, *([last.terminal_action] if last.terminal_action else [])]
        made.append(
            {
                "step": step,
                "model_text": calls[-1].said.get("content"),
                "model_call_count": len(calls),
                "actions": said,
                "reward": (outcome.get("reward") or 0.0) if done else 0.0,
                "done": done,
                "info": {"policy_stop_reason": last.policy_stop_reason},
                "state": _state(turns.get(step - 1)),
                "next_state": _state(turns.get(step)),
            }
        )
    return made


def _state(turn: Row | None) -> dict[str, Any] | None:
    return None if turn is None else {name: turn[name] for name in ("screenshot_bytes", "screenshot_sha256")}


def aggregate_metrics(batch: Row, planned: list[Row], *, failed: int, replaced: int) -> dict[str, Any]:
    """Metrics of a batch. `planned`: its rollouts; the rest counts attempts.

    Coverage is there in total and per agent, also when nothing was measured: rates are null then, counts are not.
    """
    # Admitted ones only: a masked rollout has no score, and 0 would be one.
    scores = [row["score"] for row in planned if row["admitted"] and row["state"] == "final"]
    successes, number = sum(score >= 1.0 for score in scores), len(scores)
    final = [row for row in planned if row["state"] == "final"]
    coverage = {
        "expected_rollouts": len(planned),
        "completed_rollouts": number,
        "masked_rollouts": len(final) - number,
        "missing_rollouts": len(planned) - len(final),
        "failed_attempts": failed,
        "replaced_attempts": replaced,
    }
    return {
        "agent_ref": AGENT_REF["name"],
        "batch_id": batch["batch_id"],
        "contract_digest": batch["contract_digest"],
        "osworld/scored_rollout_count": number,
        "osworld/binary_success_count": successes,
        "osworld/binary_success_rate": 100.0 * successes / number if number else None,
        "osworld/raw_reward_sum": sum(scores),
        "osworld/raw_reward_rate": 100.0 * sum(scores) / number if number else None,
        **{f"coverage/{name}": value for name, value in coverage.items()},
        "coverage_by_agent": {AGENT_REF["name"]: coverage},
        **_completion(planned, number),
    }


def _completion(planned: list[Row], completed: int) -> dict[str, Any]:
    """Upstream's completion summary: rows of the main file against rows of the inputs, and inputs by task."""
    tasks = {row["task_id"] for row in planned}
    # A task is complete when each of its samples is final.
    open_tasks = {row["task_id"] for row in planned if row["state"] != "final"}
    begun = {row["task_id"] for row in planned if row["state"] == "final"}
    return {
        "expected_rollout_rows": len(planned),
        "completed_rollout_rows": completed,
        "missing_rollout_rows": len(planned) - completed,
        "extra_rollout_rows": 0,
        "reward_profile_completion_pct": 100.0 * completed / len(planned),
        "total_input_rows": len(tasks),
        "complete_input_rows": len(tasks - open_tasks),
        "partial_input_rows": len(begun & open_tasks),
        "missing_input_rows": len(tasks - begun),
    }


async def export_gym(
    ledger: Ledger,
    artifacts: Artifacts,
    batch_id: str,
    out: Path,
    *,
    partial: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Write the four files next to `out` (`<stem>.jsonl`), as a set; how many rows are in them, and their digests.

    The result of a final rollout is its selected attempt: in the main file when admitted, in the sidecar and terminal
    when masked. Every other attempt that ended is in the sidecar and not terminal. All files tell of one moment: what
    is decided or run again meanwhile is in none of them. Raises InvalidInput for an unknown batch, and for one that is
    not whole unless `partial`.
    """
    paths = _paths(out)
    with ExitStack() as stack:
        async with ledger.snapshot() as seen:
            batch = await seen.batch_of(batch_id)
            contract = require_played(batch_id, batch["contract"])
            planned = await seen.rollouts_of(batch_id)
            _refuse_open(planned, partial)
            parent_of(out)
            files = stack.enter_context(FileSet(*paths.values()))  # the main file last: it is the marker
            export = _Export(seen, artifacts, contract, files, paths)
            tasks = _task_indexes(planned)
            for number, row in enumerate(planned, 1):
                await export.rollout(row, tasks[row["task_id"]])
                progress(number, len(planned))
        metrics = aggregate_metrics(
            batch, planned, failed=export.rows["failures"] - export.rows["replaced"], replaced=export.rows["replaced"]
        )
        files.write(paths["metrics"], line(metrics))
        files.publish()
        digests = {path.name: files.sha256(path) for path in paths.values()}
    return {name: export.rows[name] for name in ("results", "failures", "inputs")} | {"sha256": digests}


def _refuse_open(planned: list[Row], partial: bool) -> None:
    missing = sum(row["state"] != "final" for row in planned)
    if missing and not partial:
        raise InvalidInput(f"batch: {missing} of {len(planned)} rollouts are not final; say --partial")


def _paths(out: Path) -> dict[str, Path]:
    stem = out.name.removesuffix(".jsonl")
    names = {
        "inputs": f"{stem}_materialized_inputs.jsonl",
        "failures": f"{stem}_failures.jsonl",
        "metrics": f"{stem}_aggregate_metrics.json",
        "results": f"{stem}.jsonl",
    }
    return {kind: out.with_name(name) for kind, name in names.items()}


def _task_indexes(planned: list[Row]) -> dict[str, int]:
    """Tasks in the order of the plan; two rows of one task share an index."""
    found: dict[str, int] = {}
    for row in planned:
        found.setdefault(row["task_id"], len(found))
    return found


@dataclass
class _Export:
    """Source, destination and number of the rows."""

    seen: Reader
    artifacts: Artifacts
    contract: Contract
    files: FileSet
    paths: dict[str, Path]
    rows: Counter[str] = field(default_factory=Counter)

    async def rollout(self, planned: Row, task_index: int) -> None:
        """The input of a planned rollout and every attempt of it that ended."""
        key = planned["rollout_key"]
        row = await self.seen.planned_rollout(key)
        self._write("inputs", input_row(row, self.contract, task_index))
        # Every attempt, not only the selected one: a trainer sees how often a rollout was tried.
        for attempt in range(1, (row["current_attempt"] or 0) + 1):
            one = await self.seen.recorded(key, attempt)
            # The newest attempt may still be open in a partial export.
            if one.outcome is not None:
                await self._attempt(one, planned, task_index)

    async def _attempt(self, one: RecordedAttempt, planned: Row, task_index: int) -> None:
        counts = planned["state"] == "final" and planned["selected_attempt"] == one.attempt_index
        admitted = one.decision("runtime")["admitted"]
        loaded = await load_calls(one, self.artifacts)
        if counts and admitted:
            self._write("results", result_row(loaded, task_index))
        elif admitted:
            self._write("failures", replaced_row(loaded, task_index))
            self.rows["replaced"] += 1
        else:
            self._write("failures", failure_row(loaded, task_index, terminal=counts))

    def _write(self, kind: str, row: dict[str, Any]) -> None:
        self.files.write(self.paths[kind], line(row))
        self.rows[kind] += 1
