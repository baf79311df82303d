"""Parquet columns of the training export: what fits is kept, what does not is refused; rows alone decide the bytes."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from models.identity import canonical_json
from rollbook.errors import ConfigError, InvalidInput
from rollbook.export import training
from rollbook.export.training import COLUMNS, JSON_COLUMNS, LAYOUT, Kind, cells_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "training-export.md"
SCALARS: dict[str, Any] = {"text": "né\n", "int": 2**53 + 1, "float": -0.1, "bool": True, "json": {"a": [1, None, 0.5]}}


def example(kind: Kind) -> Any:
    if isinstance(kind, dict):
        return {name: example(of) for name, of in kind.items()}
    return [example(kind[0])] * 2 if isinstance(kind, list) else SCALARS[kind]


def row(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = example(COLUMNS)
    return made | changes


def lines(rows: list[dict[str, Any]]) -> list[bytes]:
    return [canonical_json(one).encode() + b"\n" for one in rows]


def table(data: bytes) -> Any:
    return pyarrow.parquet.ParquetFile(io.BytesIO(data))


def test_every_column_takes_its_kind_and_null() -> None:
    rows = [row(), {name: None for name in COLUMNS}, row(media=[], loss_spans=[], said={})]
    found = table(b"".join(training.parquet_of(lines(rows)))).read().to_pylist()
    for one in found:
        for name in JSON_COLUMNS:
            one[name] = None if one[name] is None else json.loads(one[name])
    assert found == rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mood": "good"}, "cannot hold mood: no column"),
        ({"group": {**row()["group"], "median": 0.5}}, "cannot hold group.median: no column"),
        ({"group": {"planned": 3, "members": 3}}, "cannot hold group.valid: not in the row"),
        ({"sample": 1.5}, "cannot hold sample: float in a column of int"),
        ({"sample": True}, "cannot hold sample: bool in a column of int"),
        ({"policy": ["noop"]}, "cannot hold policy: list in a column of text"),
        ({"loss_spans": [[0, 1.5]]}, r"cannot hold loss_spans\[\]\[\]: float in a column of int"),
        ({"exact_trace": {"evidence_complete": True, "incomplete_reasons": [None]}}, "a null in a list"),
        ({"sample": 2**63}, "use --format jsonl"),
    ],
)
def test_what_would_be_lost_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        list(training.parquet_of(lines([row(**changes)])))


def test_only_a_callers_identity_may_be_absent() -> None:
    identity = row()["identity"]
    del identity["source_group_id"]
    assert "source_group_id" not in cells_of(row(identity=identity))["identity"]
    del identity["group_id"]
    with pytest.raises(InvalidInput, match=r"identity\.group_id: not in the row"):
        cells_of(row(identity=identity))


def test_row_groups_are_written_as_they_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "GROUP_ROWS", 40)
    asked = 0

    def rows() -> Iterator[bytes]:
        nonlocal asked
        for number, one in enumerate(lines([row()] * 100)):
            asked = number + 1
            yield one

    chunks, seen = [], []
    for chunk in training.parquet_of(rows()):
        chunks.append(chunk)
        seen.append(asked)
    assert seen == [40, 80, 100, 100]
    assert all(chunks)
    found = table(b"".join(chunks))
    assert [found.metadata.row_group(number).num_rows for number in range(found.num_row_groups)] == [40, 40, 20]
    assert b"".join(training.parquet_of(rows())) == b"".join(chunks)
    monkeypatch.setattr(training, "GROUP_BYTES", 3 * len(lines([row()])[0]))
    found = table(b"".join(training.parquet_of(rows())))
    assert {found.metadata.row_group(number).num_rows for number in range(found.num_row_groups)} == {3, 1}


def test_a_batch_without_calls_is_a_file_without_rows() -> None:
    found = table(b"".join(training.parquet_of([])))
    assert found.metadata.num_rows == 0
    assert found.schema_arrow.metadata[b"rollbook.layout"] == LAYOUT.encode()


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"install rollbook with its extra `export`"):
        training.require_pyarrow()


def test_pyarrow_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, rollbook.cli.main, rollbook.export.training; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def shown(kind: Kind) -> str:
    """A kind as the reference writes it."""
    if isinstance(kind, dict):
        return "struct<" + ", ".join(f"{name}: {shown(of)}" for name, of in kind.items()) + ">"
    return f"list<{shown(kind[0])}>" if isinstance(kind, list) else kind


def test_the_reference_lists_every_column_with_its_type() -> None:
    section = PAGE.read_text().partition("## Parquet\n")[2].partition("\n## ")[0]
    assert f"`{LAYOUT}`" in section
    documented = {
        name: kind
        for names, kind in re.findall(r"^\| (`[^|]*`) \| `([^|`]*)` \|$", section, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    }
    assert documented == {name: shown(kind) for name, kind in COLUMNS.items()}
