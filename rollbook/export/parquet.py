"""Rows as Parquet bytes, a row group at a time; pyarrow comes with the extra `export`.

Equal rows give equal bytes as long as pyarrow is the same: nothing in the file depends on when or where it was written,
but the version of the library does stand in it.
"""

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from rollbook.errors import ConfigError
from rollbook.export.training_columns import ABSENT_WHEN_NULL, COLUMNS, JSON_COLUMNS, LAYOUT, Kind, cells_of, refused
from rollbook.export.training_rows import SCHEMA

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
    """The columns as an Arrow schema; which of them are JSON text stands in its metadata."""
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
        full = rows == GROUP_ROWS or size >= GROUP_BYTES
        if full or len(cells) == _CHUNK_ROWS:
            chunks.append(_table(cells, schema))
            cells = []
        if full:
            yield _joined(chunks)
            chunks, rows, size = [], 0, 0
    if rows:
        yield _joined([*chunks, _table(cells, schema)])


def _table(cells: list[dict[str, Any]], schema: Any) -> Any:
    try:
        return _pyarrow("pyarrow").Table.from_pylist(cells, schema)
    except (ValueError, TypeError, OverflowError) as error:  # its own errors are among them; a number beyond 64 bits
        raise refused("a value", str(error)) from error


def _joined(chunks: list[Any]) -> Any:
    return _pyarrow("pyarrow").concat_tables(chunks).combine_chunks()


class _Sink:
    """What pyarrow writes to: a file that keeps nothing but what was not taken yet."""

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
