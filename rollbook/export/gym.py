"""The NeMo-Gym export: `<stem>.jsonl`, its failures, its inputs, its metrics (upstream contract §2.2, §7.4)."""

from pathlib import Path
from typing import Any

from rollbook.errors import InvalidInput
from rollbook.evidence.load import Artifacts, load_calls
from rollbook.export.files import line, parent_of, write_whole
from rollbook.export.gym_rows import failure_row, input_row, result_row
from rollbook.ledger import Ledger
from rollbook.ledger.recorded import Row


async def export_gym(
    ledger: Ledger, artifacts: Artifacts, batch_id: str, out: Path, *, partial: bool = False
) -> dict[str, Any]:
    """Write the four files next to `out` (`<stem>.jsonl`); what is in them.

    Measured rollouts go to the main file; every masked attempt goes to the sidecar. Raises InvalidInput for an unknown
    batch, and for one that is not whole unless `partial`.
    """
    batch = await ledger.batch_of(batch_id)
    planned = await ledger.rollouts_of(batch_id)
    missing = [row["rollout_key"] for row in planned if row["state"] != "final"]
    if missing and not partial:
        raise InvalidInput(f"batch: {len(missing)} of {len(planned)} rollouts are not final; say --partial")
    tasks = _task_indexes(planned)
    results, failures, inputs = [], [], []
    for row in planned:
        index = tasks[row["task_id"]]
        if row["selected_attempt"] is None:
            inputs.append(await _input(ledger, row["rollout_key"], batch["contract"], index))
            continue
        selected = await ledger.recorded(row["rollout_key"])
        inputs.append(line(input_row(selected.rollout, selected.rollout["document"], batch["contract"], index)))
        for attempt in range(1, (selected.rollout["current_attempt"] or 0) + 1):
            one = await load_calls(await ledger.recorded(row["rollout_key"], attempt), artifacts)
            admitted = bool(one.attempt.decision("runtime")["admitted"])
            if one.attempt.outcome is None:
                continue
            if attempt == row["selected_attempt"] and admitted:
                results.append(line(result_row(one, index)))
            elif not admitted:
                last = attempt == selected.rollout["current_attempt"] and row["state"] == "final"
                failures.append(line(failure_row(one, index, terminal=last)))
    metrics = await _metrics(ledger, planned, batch, failures=len(failures))
    return _write(out, results, failures, inputs, metrics)


async def _input(ledger: Ledger, key: str, contract: Row, index: int) -> bytes:
    rollout = await ledger.planned_rollout(key)
    return line(input_row(rollout, rollout["document"], contract, index))


def _task_indexes(planned: list[Row]) -> dict[str, int]:
    """Tasks in the order of the plan; two rows of one task share an index."""
    found: dict[str, int] = {}
    for row in planned:
        found.setdefault(row["task_id"], len(found))
    return found


async def _metrics(ledger: Ledger, planned: list[Row], batch: Row, *, failures: int) -> dict[str, Any]:
    admitted = [row for row in planned if row["admitted"] and row["state"] == "final"]
    scores = [row["score"] for row in admitted]
    successes = sum(score >= 1.0 for score in scores)
    number, masked = len(scores), sum(row["state"] == "final" and not row["admitted"] for row in planned)
    tasks = {row["task_id"] for row in planned}
    whole = {task for task in tasks if all(row["state"] == "final" for row in planned if row["task_id"] == task)}
    begun = {row["task_id"] for row in planned if row["state"] == "final"}
    return {
        "agent_ref": "rollbook_osworld",
        "batch_id": batch["batch_id"],
        "contract_digest": batch["contract_digest"],
        "osworld/scored_rollout_count": number,
        "osworld/binary_success_count": successes,
        "osworld/binary_success_rate": 100.0 * successes / number if number else None,
        "osworld/raw_reward_sum": sum(scores),
        "osworld/raw_reward_rate": 100.0 * sum(scores) / number if number else None,
        "coverage/masked_rollouts": masked,
        "coverage/expected_rollouts": len(planned),
        "coverage/failed_attempts": failures,
        "expected_rollout_rows": len(planned),
        "completed_rollout_rows": number,
        "missing_rollout_rows": len(planned) - number,
        "extra_rollout_rows": 0,
        "reward_profile_completion_pct": 100.0 * number / len(planned),
        "total_input_rows": len(tasks),
        "complete_input_rows": len(whole),
        "partial_input_rows": len(begun - whole),
        "missing_input_rows": len(tasks - begun),
    }


def _write(
    out: Path, results: list[bytes], failures: list[bytes], inputs: list[bytes], metrics: dict[str, Any]
) -> dict[str, Any]:
    parent_of(out)
    stem = out.name.removesuffix(".jsonl")
    files = {
        f"{stem}_materialized_inputs.jsonl": inputs,
        f"{stem}_failures.jsonl": failures,
        f"{stem}_aggregate_metrics.json": [line(metrics)],
        f"{stem}.jsonl": results,  # last: its presence says that the others are there
    }
    digests = {name: write_whole(out.with_name(name), rows) for name, rows in files.items()}
    return {"results": len(results), "failures": len(failures), "inputs": len(inputs), "sha256": digests}
