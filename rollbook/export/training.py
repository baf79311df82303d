"""The training export: every final rollout of a batch, one row per model call.

Each rollout is written as a part of its own first, JSON lines named by what they were made from; an export that was
interrupted goes on with the parts that still fit. The file itself, these lines or Parquet made of them, appears whole,
together with a manifest of counts and digests: while the manifest is there, the file is the one that it describes.

docs/reference/training-export.md describes the rows: one per model call.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from models.contract import Contract
from models.identity import canonical_json
from rollbook.errors import ConfigError, InvalidInput
from rollbook.evidence.exact import Assigned, assign_segments
from rollbook.evidence.load import Artifacts, AttemptEvidence, CallEvidence, load_calls, require_played
from rollbook.export.files import FileSet, line, parent_of, write_whole
from rollbook.ledger import Ledger
from rollbook.ledger.reader import Reader, Row
from rollbook.ledger.records import CallRecord

# The training export as Parquet: its typed columns, and rows as Parquet bytes, a row group at a time.
#
# `docs/reference/training-export.md` defines the columns. A row is refused unless every member has its column and
# its type, so a file holds all that JSON Lines would hold. pyarrow comes with the extra `export`; it is needed to write
# the file, not to know its columns.
#
# Equal rows give equal bytes as long as pyarrow is the same: nothing depends on when or where the file was written,
# but the version of the library is in it.


SCHEMA = "rollbook-training-v2"
"""Version of the rows, in either format."""

LAYOUT = "rollbook-training-parquet-v2"
"""Version of these columns; another one when a column comes, goes or changes its type."""

Kind = str | list[Any] | dict[str, Any]
"""`text`, `int`, `float`, `bool`, or `json` (any value, as canonical JSON text); `[kind]` is a list, `{…}` a struct."""

_ADMISSION: Kind = {"admitted": "bool", "reason": "text", "policy_id": "text"}

_HELD_ELSEWHERE = frozenset(
    ["summary", "decides", "telemetry", "said", "row_digest"]
    + [f"{name}_sha256" for name in ("prompt", "response", "image", "tokens")]
)
"""Fields of a call that have a place of their own in a row, or are not exported."""

_KIND_OF: dict[Any, Kind] = {int: "int", float: "float", bool: "bool", str: "text", list[str]: ["text"]}


def _kind(annotation: Any) -> Kind:
    """The kind of a field: its type, null or not; a closed set of words is text."""
    if NoneType in (types := get_args(annotation)):
        [annotation] = [one for one in types if one is not NoneType]
    return "text" if get_origin(annotation) is Literal else _KIND_OF[annotation]


# A field that is added to CallRecord becomes a column here: LAYOUT must change with it.
CALL_COLUMNS: dict[str, Kind] = {
    name: _kind(annotation) for name, annotation in get_type_hints(CallRecord).items() if name not in _HELD_ELSEWHERE
}
"""Columns of a model call that are exported as the ledger holds them."""

COLUMNS: dict[str, Kind] = {
    "schema": "text",
    "batch_id": "text",
    "contract_digest": "text",
    "agent_contract_id": "text",
    "rollout_purpose": "text",
    "policy": "text",
    "rollout_key": "text",
    "domain": "text",
    "task_id": "text",
    "task_digest": "text",
    "sample": "int",
    "identity": {
        "schema_version": "int",
        "rollout_id": "text",
        "group_id": "text",
        "task_id": "text",
        "rollout_index": "int",
        "attempt_index": "int",
        "sampling_event_id": "text",
        "source_group_id": "text",
        "source": "text",
    },
    "trajectory_id": "text",
    "execution_id": "text",
    "group": {"planned": "int", "members": "int", "valid": "int", "baseline": "float", "advantage": "float"},
    "outcome": {
        "termination_reason": "text",
        "score": "float",
        "reward": "float",
        "reward_source": "text",
        "reward_mode": "text",
        "steps": "int",
        "horizon_reached": "bool",
    },
    "runtime_admission": _ADMISSION,
    "training_admission": _ADMISSION,
    "mask_sample": "bool",
    "trainable": "bool",
    "exact_trace": {"evidence_complete": "bool", "incomplete_reasons": ["text"]},
    "model_call_id": "text",
    "turn_id": "int",
    "call": CALL_COLUMNS,
    "said": "json",
    "messages": "json",
    "tools": "json",
    "sampling": "json",
    "media": [{"media_id": "text", "sha256": "text", "width": "int", "height": "int"}],
    "history": "json",
    "tokens": {"prompt_token_ids": ["int"], "sampled_token_ids": ["int"], "sampled_logprobs": ["float"]},
    "routed_experts": "json",
    "loss_spans": [["int"]],
    "segment": {
        "index": "int",
        "id": "text",
        "append_compatible": "bool",
        "delta_start": "int",
        "view_digest": "text",
    },
    "evidence": {
        "complete": "bool",
        "incomplete_reasons": ["text"],
        "prompt_sha256": "text",
        "response_sha256": "text",
        "tokens_sha256": "text",
        "image_sha256": "text",
    },
}

JSON_COLUMNS = tuple(name for name, kind in COLUMNS.items() if kind == "json")

ABSENT_WHEN_NULL = ("identity.sampling_event_id", "identity.source_group_id")
"""Members that a row of JSON Lines leaves out when they were not given; the column is null."""

_TYPES: dict[str, tuple[type, ...]] = {"text": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}


def cells_of(row: dict[str, Any]) -> dict[str, Any]:
    """The row as its columns hold it; raises InvalidInput for a member without a column or of another type."""
    return {name: _cell(row[name], kind, name) for name, kind in _members(row, COLUMNS, "")}


def _cell(value: Any, kind: Kind, where: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return canonical_json(value)
    if isinstance(kind, list) and isinstance(value, list):
        return _cells(value, kind[0], where)
    if isinstance(kind, dict) and isinstance(value, dict):
        return {name: _cell(value[name], of, f"{where}.{name}") for name, of in _members(value, kind, f"{where}.")}
    # Not isinstance: a bool is an int in Python, and would become 1 in a column of numbers.
    if isinstance(kind, str) and type(value) in _TYPES[kind]:
        return value
    raise refused(where, f"{type(value).__name__} in a column of {kind}")


def _cells(values: list[Any], kind: Kind, where: str) -> list[Any]:
    # arrays of tokens are long: a look at each type, not a call
    if isinstance(kind, str) and kind in _TYPES and {type(one) for one in values} <= set(_TYPES[kind]):
        return values
    if None in values:
        raise refused(where, "a null in a list")
    return [_cell(one, kind, f"{where}[]") for one in values]


def _members(value: dict[str, Any], kinds: dict[str, Kind], prefix: str) -> list[tuple[str, Kind]]:
    """Names and kinds of what is in `value`: all of `kinds`, but for what may be absent, and nothing else."""
    if unknown := sorted(value.keys() - kinds.keys()):
        raise refused(prefix + unknown[0], "no column")
    # A member that is missing is refused like an unknown one: a column of nulls would hide that it was never written.
    missing = [name for name in kinds if name not in value and prefix + name not in ABSENT_WHEN_NULL]
    if missing:
        raise refused(prefix + missing[0], "not in the row")
    return [(name, kind) for name, kind in kinds.items() if name in value]


def refused(where: str, why: str) -> InvalidInput:
    """The error for what has no place in a column."""
    return InvalidInput(f"format: parquet ({LAYOUT}) cannot hold {where}: {why}; use --format jsonl")


GROUP_ROWS = 512
"""Rows of a row group, fewer only in the last one and where they are large."""

GROUP_BYTES = 64 << 20
"""A row group is closed once its rows are this long as JSON: what a writer holds in memory at once."""

_CHUNK_ROWS = 16
"""Rows that are Python objects at once; a token is ten times as large there as in a column."""


def require_pyarrow() -> str:
    """The version of pyarrow; raises ConfigError when it is not installed."""
    return str(_pyarrow("pyarrow").__version__)


def parquet_of(lines: Iterable[bytes]) -> Iterator[bytes]:
    """A Parquet file made of JSON lines of the training export; raises InvalidInput for a row that does not fit."""
    schema = arrow_schema()
    sink = _Sink()
    writer = _pyarrow("pyarrow.parquet").ParquetWriter(
        sink,
        schema,
        # Fixed, although it is the default now: another default would change the bytes of an equal export.
        version="2.6",
        data_page_version="1.0",
        data_page_size=1 << 20,
        compression="zstd",
        compression_level=3,
        store_schema=True,
    )
    with writer:
        for group in _groups(lines, schema):
            writer.write_table(group, row_group_size=GROUP_ROWS)
            yield sink.take()
    yield sink.take()


def arrow_schema() -> Any:
    """The columns as an Arrow schema; its metadata names those that are JSON text."""
    pa = _pyarrow("pyarrow")
    metadata = {
        "rollbook.schema": SCHEMA,
        "rollbook.layout": LAYOUT,
        "rollbook.json_columns": json.dumps(JSON_COLUMNS),
        "rollbook.absent_when_null": json.dumps(ABSENT_WHEN_NULL),
    }
    return pa.schema([(name, _arrow_type(pa, kind)) for name, kind in COLUMNS.items()], metadata=metadata)


def _arrow_type(pa: Any, kind: Kind) -> Any:
    if isinstance(kind, dict):
        return pa.struct([(name, _arrow_type(pa, of)) for name, of in kind.items()])
    if isinstance(kind, list):
        return pa.list_(_arrow_type(pa, kind[0]))
    return {"text": pa.string(), "json": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}[
        kind
    ]


def _groups(lines: Iterable[bytes], schema: Any) -> Iterator[Any]:
    """Tables of a row group each. Where one ends depends on the rows alone."""
    chunks: list[Any] = []
    cells: list[dict[str, Any]] = []
    rows = size = 0
    for one in lines:
        cells.append(cells_of(json.loads(one)))
        rows, size = rows + 1, size + len(one)
        # By the length of the JSON lines and not by memory, which depends on the library.
        full = rows == GROUP_ROWS or size >= GROUP_BYTES
        if full or len(cells) == _CHUNK_ROWS:
            chunks.append(_table(cells, schema))
            cells = []
        if full:
            yield _concatenated(chunks)
            chunks, rows, size = [], 0, 0
    if rows:
        yield _concatenated([*chunks, _table(cells, schema)])


def _table(cells: list[dict[str, Any]], schema: Any) -> Any:
    try:
        return _pyarrow("pyarrow").Table.from_pylist(cells, schema)
    except (ValueError, TypeError, OverflowError) as error:  # its own errors are among them; a number beyond 64 bits
        raise refused("a value", str(error)) from error


def _concatenated(chunks: list[Any]) -> Any:
    return _pyarrow("pyarrow").concat_tables(chunks).combine_chunks()


class _Sink:
    """The file that pyarrow writes to; it keeps nothing but what was not taken yet."""

    closed = False

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._written = 0

    def write(self, data: Any) -> int:
        self._chunks.append(bytes(data))
        self._written += len(data)
        return len(data)

    def take(self) -> bytes:
        data, self._chunks = b"".join(self._chunks), []
        return data

    def tell(self) -> int:
        return self._written

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _pyarrow(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            "format: parquet needs pyarrow; install rollbook with its extra `export` (`rollbook[export]`), "
            "or use --format jsonl"
        ) from error


def rows_of(loaded: AttemptEvidence, member: Row) -> list[dict[str, Any]]:
    """The rows of one rollout's selected attempt. `member`: its group statistics (`training_rows` of the ledger)."""
    head = rollout_head(loaded, member)
    # Calls without a reply are rows too, but are in no segment.
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
            "termination_reason": outcome.get("termination_reason"),
            "score": outcome.get("score"),
            "reward": member["reward"],
            "reward_source": member["reward_source"],
            "reward_mode": outcome.get("reward_mode"),
            "steps": outcome.get("steps"),
            "horizon_reached": outcome.get("horizon_reached"),
        },
        "runtime_admission": {name: runtime[name] for name in ("admitted", "reason", "policy_id")},
        "training_admission": {name: training[name] for name in ("admitted", "reason", "policy_id")},
        # By the runtime decision alone; that of training is in `trainable`.
        "mask_sample": not runtime["admitted"],
        "trainable": bool(member["trainable"]),
        "exact_trace": {
            "evidence_complete": loaded.evidence_complete,
            "incomplete_reasons": loaded.incomplete_reasons,
        },
    }


def _call_row(loaded: AttemptEvidence, call: CallEvidence, placed: Assigned | None, trainable: bool) -> dict[str, Any]:
    record, prompt = call.record, call.prompt or {}
    return {
        "model_call_id": call.model_call_id,
        "turn_id": call.turn_id,
        "call": {name: getattr(record, name) for name in CALL_COLUMNS},
        # `kept_text` repeats thought and action, for later prompts.
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
            "prompt_sha256": record.prompt_sha256,
            "response_sha256": record.response_sha256,
            "tokens_sha256": record.tokens_sha256,
            "image_sha256": record.image_sha256,
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
        [call.record.row_digest, call.reasons, call.record.prompt_sha256, call.record.tokens_sha256]
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
    # One snapshot: group statistics and rows of different moments would contradict each other.
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
        # Statistics are over the whole batch, so they are computed once and not for each rollout.
        members, totals, made = await seen.group_statistics(batch_id), Totals(), []
        for number, row in enumerate(final, 1):
            made.append(await _part(seen, artifacts, parts, row, members[row["rollout_key"]], totals))
            progress(number, len(final))
    # The manifest is published last: while it is absent the file is not finished.
    marker = out.with_name(f"{out.name}.manifest.json")
    with FileSet(out, marker) as files:
        for chunk in _joined(made) if format == "jsonl" else parquet_of(_lines(made)):
            files.write(out, chunk)
        said = about | _described(batch, planned, totals)
        manifest = {"schema": SCHEMA, **said, "file": out.name, "sha256": files.sha256(out)}
        files.write(marker, line(manifest))
        files.publish()
    # Only now: until the file is published, the parts are what an interrupted export goes on with.
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
    # The source is in the name: a part that was made from other evidence is never found again.
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
