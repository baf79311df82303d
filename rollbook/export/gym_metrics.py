"""The aggregate metrics of a gym export: scores of what was measured, coverage of what was planned. Pure."""

from typing import Any

from rollbook.export.gym_rows import AGENT_REF
from rollbook.ledger.reader import Row


def aggregate_metrics(batch: Row, planned: list[Row], *, failed: int, replaced: int) -> dict[str, Any]:
    """Metrics of a batch (upstream contract §2.3, §7.4). `planned`: its rollouts; the rest counts attempts.

    Coverage is there in total and per agent, also when nothing was measured: rates are null then, counts are not.
    """
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
