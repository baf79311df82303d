"""Shared parts of the table definitions: naming, column kinds, and SQL lists of closed vocabularies."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    Double,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    Text,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "ck": "%(constraint_name)s",
    }
)

Json = JSON(none_as_null=True)
"""Text kept as it was written: for documents whose digest is recomputed from the stored text."""
Jsonb = JSONB(none_as_null=True)
"""Parsed JSON, for facts that people query."""
Time = TIMESTAMP(timezone=True)

JSON_DIGEST = "{digest} = encode(sha256(convert_to({document}::text, 'UTF8')), 'hex')"
"""The stored text is canonical JSON and the digest is its own: one cannot be exchanged without the other."""


def text(name: str, comment: str, *, null: bool = False, **options: Any) -> Column[str]:
    """A text column."""
    return Column(name, Text, nullable=null, comment=comment, **options)


def integer(name: str, comment: str, *, null: bool = False, **options: Any) -> Column[int]:
    """A 32-bit integer column."""
    return Column(name, Integer, nullable=null, comment=comment, **options)


def double(name: str, comment: str, *, null: bool = True) -> Column[float]:
    """A double precision column; ranges are named checks, which also refuse NaN and infinities."""
    return Column(name, Double, nullable=null, comment=comment)


def now(name: str, comment: str) -> Column[Any]:
    """A time set by the database when the row is written."""
    return Column(name, Time, nullable=False, server_default=func.now(), comment=comment)


def row_digest() -> Column[str]:
    """The seal of an insert-only row, set by a trigger; `rollbook audit` recomputes it."""
    return text("row_digest", "SHA-256 over the other columns, set by a trigger when the row is inserted")


def check(name: str, condition: str) -> CheckConstraint:
    """A named invariant."""
    return CheckConstraint(condition, name=name)


def one_of(column: str, values: Iterable[str]) -> str:
    """SQL: the column is NULL or one of a closed vocabulary."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def unit_interval(column: str) -> str:
    """SQL: NULL or finite within 0..1 (NaN sorts above every number in Postgres, so it is refused too)."""
    return f"{column} IS NULL OR ({column} >= 0 AND {column} <= 1)"


def sha256_text(column: str) -> str:
    """SQL: NULL or 64 lowercase hexadecimal digits."""
    return f"{column} ~ '^[0-9a-f]{{64}}$'"


def not_blank(column: str) -> str:
    """SQL: NULL or more than white space."""
    return f"{column} ~ '\\S'"


def to_attempt() -> ForeignKeyConstraint:
    """The row belongs to an attempt."""
    return ForeignKeyConstraint(["rollout_key", "attempt_index"], ["attempt.rollout_key", "attempt.attempt_index"])


def to_outcome() -> ForeignKeyConstraint:
    """The row belongs to the end of an attempt."""
    return ForeignKeyConstraint(["rollout_key", "attempt_index"], ["outcome.rollout_key", "outcome.attempt_index"])
