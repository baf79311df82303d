"""The trust anchor of a batch: one digest of its record, taken whenever the batch becomes whole.

The record is text: one line per planned rollout, attempt, evaluation, end, decision, … with the digest of that row
(view `batch_record`). Its SHA-256 is the batch's digest, and its name in the artifact store. A superuser can give a
changed row a fitting row digest; the record that is kept elsewhere still names the row as it was.

What happens to a finished batch later (a decision by hand, a rerun, an extension) appends rows and so lines. Each
completion has a record of its own, and every line of every record must still be there.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from models.evidence import ArtifactRef
from rollbook.ledger.sql import statements

RECORD_TYPE = "application/x-rollbook-record"
"""Not a text type: the artifact store would redact it, and then it would not have its digest."""

Keep = Callable[[bytes, str], Awaitable[ArtifactRef]]
"""`ArtifactStore.put`."""

_SQL = statements("completion")


@dataclass(frozen=True, slots=True)
class Completion:
    """A time at which every row of a batch was final."""

    completion_index: int
    digest: str
    recorded_at: datetime


async def read_record(conn: AsyncConnection, batch_id: str) -> bytes:
    """The record of a batch as it is now."""
    lines = (await conn.execute(_SQL["record"], {"batch_id": batch_id})).scalars()
    return "".join(f"{line}\n" for line in lines).encode()


def digest_of(record: bytes) -> str:
    """The digest of a batch."""
    return hashlib.sha256(record).hexdigest()


async def complete(conn: AsyncConnection, batch_id: str, keep: Keep | None) -> None:
    """Keep the record of a batch that is whole, then its digest; the batch row must be locked."""
    record = await read_record(conn, batch_id)
    if keep is not None:
        await keep(record, RECORD_TYPE)  # first: a completion without its record would fail every audit
    await conn.execute(_SQL["complete"], {"batch_id": batch_id, "digest": digest_of(record)})


async def completions_of(conn: AsyncConnection, batch_id: str) -> list[Completion]:
    """The completions of a batch, the first one first."""
    return [Completion(*row) for row in await conn.execute(_SQL["completions"], {"batch_id": batch_id})]


def gone(record: bytes, current: bytes) -> list[str]:
    """Lines of a record that the batch no longer has: their rows were changed or deleted."""
    there = set(current.splitlines())
    return [line.decode(errors="replace") for line in record.splitlines() if line not in there]


def appended(record: bytes, current: bytes) -> dict[str, int]:
    """Rows that a batch has beyond a record, counted by their kind."""
    known = set(record.splitlines())
    return dict(Counter(line.split(b" ", 1)[0].decode() for line in current.splitlines() if line not in known))
