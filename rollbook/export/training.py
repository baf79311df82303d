"""The training export: every final rollout of a batch, one row per model call.

Each rollout is written as a part of its own first, JSON lines named by what they were made from; an export that was
interrupted goes on with the parts that still fit. The file itself, these lines or Parquet made of them, appears whole,
together with a manifest of counts and digests: while the manifest is there, the file is the one that it describes.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from models.contract import Contract
from rollbook.errors import InvalidInput
from rollbook.evidence.load import Artifacts, load_calls, require_played
from rollbook.export.files import FileSet, line, parent_of, write_whole
from rollbook.export.parquet import parquet_of, require_pyarrow
from rollbook.export.training_columns import LAYOUT
from rollbook.export.training_rows import SCHEMA, rows_of, source_of
from rollbook.ledger import Ledger
from rollbook.ledger.reader import Reader

Format = Literal["jsonl", "parquet"]


@dataclass
class Totals:
    """What went into an export."""

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
