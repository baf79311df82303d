"""The NeMo-Gym export: `<stem>.jsonl`, its failures, its inputs, its metrics (upstream contract §2.2, §7.4).

Rows go to disk as they are made, one attempt at a time: what is held in memory is the evidence of one attempt.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.contract import Contract
from rollbook.errors import InvalidInput
from rollbook.evidence.load import Artifacts, load_calls, require_played
from rollbook.export.files import FileSet, line, parent_of
from rollbook.export.gym_metrics import aggregate_metrics
from rollbook.export.gym_rows import failure_row, input_row, replaced_row, result_row
from rollbook.ledger import Ledger
from rollbook.ledger.reader import Reader, Recorded, Row


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
    """Where rows come from, where they go, and how many there were."""

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
        for attempt in range(1, (row["current_attempt"] or 0) + 1):
            one = await self.seen.recorded(key, attempt)
            if one.outcome is not None:
                await self._attempt(one, planned, task_index)

    async def _attempt(self, one: Recorded, planned: Row, task_index: int) -> None:
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
