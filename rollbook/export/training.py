"""The training export: every final rollout of a batch, one row per model call.

Each rollout is written as a part of its own first, JSON lines named by what they were made from; an export that was
interrupted goes on with the parts that still fit. The file itself, these lines or Parquet made of them, appears whole,
together with a manifest of counts and digests: while the manifest is there, the file is the one that it describes.

docs/reference/training-export.md describes the rows: one per model call.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from models.contract import Contract
from models.identity import canonical_json
from rollbook.errors import InvalidInput
from rollbook.evidence.exact import Assigned, assign_segments
from rollbook.evidence.load import Artifacts, AttemptEvidence, CallEvidence, load_calls, require_played
from rollbook.export.files import FileSet, line, parent_of, write_whole
from rollbook.export.parquet import CALL_COLUMNS, LAYOUT, SCHEMA, parquet_of, require_pyarrow
from rollbook.ledger import Ledger
from rollbook.ledger.reader import Reader, Row


def rows_of(loaded: AttemptEvidence, member: Row) -> list[dict[str, Any]]:
    """The rows of one rollout's selected attempt. `member`: its group statistics (`training_rows` of the ledger)."""
    head = rollout_head(loaded, member)
    placed = {one.call.model_call_id: one for one in assign_segments(loaded.trajectory_id, loaded.generations)}
    return [
        {**head, **_call_row(loaded, call, placed.get(call.model_call_id), head["trainable"])} for call in loaded.calls
    ]


def rollout_head(loaded: AttemptEvidence, member: Row) -> dict[str, Any]:
    """Members that all rows of a rollout share."""
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


def _call_row(loaded: AttemptEvidence, call: CallEvidence, placed: Assigned | None, trainable: bool) -> dict[str, Any]:
    row, prompt = call.row, call.prompt or {}
    return {
        "model_call_id": call.model_call_id,
        "turn_id": call.turn_id,
        "call": {name: row[name] for name in CALL_COLUMNS},
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


def source_of(loaded: AttemptEvidence, member: Row) -> str:
    """Sources of the rows, as text: equal text, equal rows. Cheaper than the rows, and enough to resume by."""
    calls = [
        [call.row["row_digest"], call.reasons, call.row["prompt_sha256"], call.row["tokens_sha256"]]
        for call in loaded.calls
    ]
    return canonical_json([rollout_head(loaded, member), calls])


Format = Literal["jsonl", "parquet"]


@dataclass
class Totals:
    """Counts of an export."""

    rows: int = 0
    rollouts: int = 0
    masked: int = 0
    without_calls: int = 0
    complete: int = 0
    parts_reused: int = 0


async def export_training(
    ledger: Ledger,
    artifacts: Artifacts,
    batch_id: str,
    out: Path,
    *,
    format: Format = "jsonl",
    partial: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Write `out` and `<out>.manifest.json`; the manifest.

    All rows tell of one moment: what is decided or run again meanwhile is in none of them. Raises InvalidInput for an
    unknown batch, and for one that is not whole unless `partial`; ConfigError for Parquet without pyarrow.
    """
    about = {"format": format} | ({"layout": LAYOUT, "pyarrow": require_pyarrow()} if format == "parquet" else {})
    async with ledger.snapshot() as seen:
        batch = await seen.batch_of(batch_id)
        require_played(batch_id, batch["contract"])
        planned = await seen.rollouts_of(batch_id)
        final = [row for row in planned if row["state"] == "final"]
        if len(final) < len(planned) and not partial:
            raise InvalidInput(
                f"batch: {len(planned) - len(final)} of {len(planned)} rollouts of {batch_id} are not final; "
                "wait for them, or say --partial"
            )
        parts = _parts_directory(out)
        members, totals, made = await seen.group_statistics(batch_id), Totals(), []
        for number, row in enumerate(final, 1):
            made.append(await _part(seen, artifacts, parts, row, members[row["rollout_key"]], totals))
            progress(number, len(final))
    marker = out.with_name(f"{out.name}.manifest.json")
    with FileSet(out, marker) as files:
        for chunk in _joined(made) if format == "jsonl" else parquet_of(_lines(made)):
            files.write(out, chunk)
        said = about | _described(batch, planned, totals)
        manifest = {"schema": SCHEMA, **said, "file": out.name, "sha256": files.sha256(out)}
        files.write(marker, line(manifest))
        files.publish()
    shutil.rmtree(parts)
    return manifest | {"parts_reused": totals.parts_reused}


def _described(batch: dict[str, Any], planned: list[dict[str, Any]], totals: Totals) -> dict[str, Any]:
    contract = Contract.read(batch["contract"])
    return {
        "batch_id": batch["batch_id"],
        "contract_digest": batch["contract_digest"],
        "agent_contract": contract.agent_contract,
        "agent_contract_id": contract.agent_contract_id,
        "rollout_purpose": batch["purpose"],
        "planned": len(planned),
        "final": totals.rollouts,
        "masked": totals.masked,
        "rollouts_without_calls": totals.without_calls,
        "rollouts_with_complete_evidence": totals.complete,
        "rows": totals.rows,
    }


def _parts_directory(out: Path) -> Path:
    parts = parent_of(out) / f"{out.name}.parts"
    parts.mkdir(exist_ok=True)
    return parts


async def _part(
    seen: Reader, artifacts: Artifacts, parts: Path, row: dict[str, Any], member: dict[str, Any], totals: Totals
) -> Path:
    loaded = await load_calls(await seen.recorded(row["rollout_key"]), artifacts)
    source = hashlib.sha256(source_of(loaded, member).encode()).hexdigest()
    path = parts / f"{row['plan_order']:08d}-{source[:32]}.jsonl"
    totals.rollouts += 1
    totals.rows += len(loaded.calls)
    totals.masked += int(not row["admitted"])
    totals.without_calls += int(not loaded.calls)
    totals.complete += int(loaded.evidence_complete)
    if path.exists():
        totals.parts_reused += 1
    else:
        write_whole(path, (line(one) for one in rows_of(loaded, member)))
    return path


def _joined(parts: list[Path]) -> Iterator[bytes]:
    for part in parts:
        yield part.read_bytes()


def _lines(parts: list[Path]) -> Iterator[bytes]:
    for part in parts:
        with part.open("rb") as file:
            yield from file
