"""Columns of the training export in Parquet, typed; `docs/reference/training-export.md` says what they mean.

A row is refused unless every member has its column and its type, so a file holds all that JSON Lines would hold. Pure:
pyarrow is needed to write the file, not to know what is in it.
"""

from typing import Any

from models.identity import canonical_json
from rollbook.errors import InvalidInput

LAYOUT = "rollbook-training-parquet-v2"
"""Version of these columns; another one when a column comes, goes or changes its type."""

Kind = str | list[Any] | dict[str, Any]
"""`text`, `int`, `float`, `bool`, or `json` (any value, as canonical JSON text); `[kind]` is a list, `{…}` a struct."""

_ADMISSION: Kind = {"admitted": "bool", "reason": "text", "policy_id": "text"}

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
    "call": {
        "step": "int",
        "parse_attempt": "int",
        "policy_kind": "text",
        "completed": "bool",
        "accepted": "bool",
        "actions": ["text"],
        "terminal_action": "text",
        "policy_stop_reason": "text",
        "parse_error": "text",
        "failure_kind": "text",
        "finish_reason": "text",
        "model_name": "text",
        "model_version": "text",
        "prompt_tokens": "int",
        "completion_tokens": "int",
        "latency_s": "float",
    },
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
"""Members that a row of JSON Lines leaves out when nobody gave them; the column is null."""

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
    missing = [name for name in kinds if name not in value and prefix + name not in ABSENT_WHEN_NULL]
    if missing:
        raise refused(prefix + missing[0], "not in the row")
    return [(name, kind) for name, kind in kinds.items() if name in value]


def refused(where: str, why: str) -> InvalidInput:
    """The error for what has no place in a column."""
    return InvalidInput(f"format: parquet ({LAYOUT}) cannot hold {where}: {why}; use --format jsonl")
