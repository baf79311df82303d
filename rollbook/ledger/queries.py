"""What people ask the ledger: batches, roll calls, single rollouts. Reads only."""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from models.batch import Counts
from models.explain import did_you_mean
from models.task import domain_rank
from rollbook.errors import InvalidInput
from rollbook.ledger.control import counts
from rollbook.ledger.engine import create_engine, transaction
from rollbook.ledger.selection import Member, Planned

_CANDIDATES = 10

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch, its control and its newest launch."""

    batch_id: str
    deployment_id: str
    namespace: str
    contract: dict[str, Any]
    contract_digest: str
    policy: str
    paused: bool
    frozen: bool
    stopping: bool
    cancelling: bool
    control_reason: str
    concurrency: int
    max_attempts: int
    created_at: datetime
    closed_at: datetime | None
    launch_id: str
    launch_index: int | None
    """None between the first statement of a registration and its end."""
    spec: dict[str, Any] | None
    """The newest launch's spec."""
    set_digest: str | None
    registered_at: datetime | None


@cache
def _queries() -> dict[str, TextClause]:
    """The named queries of `sql/queries.sql`."""
    script = (Path(__file__).parent / "sql" / "queries.sql").read_text()
    sections = re.split(r"^-- name: (.+)$", script, flags=re.MULTILINE)[1:]
    return {
        name.strip(): text(query.strip().rstrip(";")) for name, query in zip(sections[::2], sections[1::2], strict=True)
    }


class Reader:
    """Read-only access, one short transaction per question."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    def connect(cls, url: str) -> "Reader":
        """A reader of the ledger at `url`."""
        return cls(create_engine(url, pool_size=2))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._engine.dispose()

    async def batch(self, batch_id: str) -> BatchRow:
        """One batch; raises InvalidInput that says which are similar."""
        if found := await self.known_batch(batch_id):
            return found
        known = [row["batch_id"] for row in await self._rows("batch_ids")]
        hint = did_you_mean(batch_id, known, count=3) or "`rollbook status` lists them"
        raise InvalidInput(f"batch: the ledger has no batch {batch_id!r}; {hint}")

    async def known_batch(self, batch_id: str) -> BatchRow | None:
        """One batch, None if there is none of that id."""
        found = await self._rows("one_batch", batch_id=batch_id)
        return _batch_row(found[0]) if found else None

    async def batches(self, limit: int = 20) -> list[BatchRow]:
        """The newest batches."""
        return [_batch_row(row) for row in await self._rows("newest_batches", limit=limit)]

    async def counts(self, batch_id: str) -> Counts:
        """The roll call in numbers."""
        async with self._reading() as conn:
            return await counts(conn, batch_id)

    async def domains(self, batch_id: str) -> list[Row]:
        """The roll call by domain, in OSWorld's order."""
        return sorted(await self._rows("domains", batch_id=batch_id), key=lambda row: domain_rank(row["domain"]))

    async def masked(self, batch_id: str) -> list[Row]:
        """Why rollouts are masked: reason and number, most frequent first."""
        return await self._rows("masked", batch_id=batch_id)

    async def pace(self, batch_id: str, since: datetime) -> tuple[int, float]:
        """(rollouts that ended, seconds that passed) since a time."""
        row = (await self._rows("pace", batch_id=batch_id, since=since))[0]
        return row["ended"], float(row["seconds"])

    async def running(self, batch_id: str, limit: int = 20) -> list[Row]:
        """Rollouts under way, the longest first."""
        return await self._rows("running", batch_id=batch_id, limit=limit)

    async def rollouts(self, batch_id: str) -> list[Row]:
        """Every rollout of a batch with its selected outcome, in the order of the plan."""
        return await self._rows("rollouts", batch_id=batch_id)

    async def last_screens(self, batch_id: str) -> dict[str, str]:
        """Rollout → digest of the latest screenshot of its selected (else current) attempt."""
        rows = await self._rows("last_screens", batch_id=batch_id)
        return {row["rollout_key"]: row["screenshot_sha256"] for row in rows}

    async def find_rollout(self, given: str) -> str:
        """The one rollout whose key is, begins or ends with `given`; raises InvalidInput that lists candidates."""
        found = [row["rollout_key"] for row in await self._rows("find", given=given, limit=_CANDIDATES + 1)]
        if not given or not found:
            raise InvalidInput(
                f"rollout: no key is, begins or ends with {given!r}; `rollbook report BATCH --rollouts` lists them"
            )
        if found[0] == given or len(found) == 1:
            return str(found[0])
        more = " …" if len(found) > _CANDIDATES else ""
        raise InvalidInput(f"rollout: {given!r} fits several: {', '.join(found[:_CANDIDATES])}{more}")

    async def task_sets(self) -> list[Row]:
        """Registered task sets, the newest registration of each name."""
        return await self._rows("task_sets")

    async def scripts(self) -> list[Row]:
        """Registered scripts, the newest registration of each name."""
        return await self._rows("scripts")

    async def members(self, set_digest: str) -> list[Member]:
        """The tasks of a set."""
        return [Member(**row) for row in await self._rows("members", set_digest=set_digest)]

    async def planned(self, batch_id: str) -> list[Planned]:
        """The tasks of a batch as they are planned."""
        async with self._reading() as conn:
            return [Planned(*row) for row in await conn.execute(_queries()["planned"], {"batch_id": batch_id})]

    async def rollout(self, key: str) -> Row:
        """One rollout with its attempts, decisions, rerun requests and timeline."""
        found = await self._rows("rollout", key=key)
        if not found:
            raise InvalidInput(f"rollout: the ledger has no rollout {key!r}")
        return found[0] | {
            "attempts": await self._rows("attempts", key=key),
            "decisions": await self._rows("decisions", key=key),
            "reruns": await self._rows("reruns", key=key),
            "timeline": await self._rows("timeline", key=key),
        }

    async def steps(self, key: str, attempt: int) -> list[Row]:
        """What was decided, done and seen in each step of an attempt."""
        return await self._rows("steps", key=key, attempt=attempt)

    async def scoreboard(self, batch_id: str) -> list[Row]:
        """Scores by domain and in all, over both denominators."""
        return await self._rows("scoreboard", batch_id=batch_id)

    async def pass_k(self, batch_id: str) -> list[Row]:
        """pass@k and pass^k."""
        return await self._rows("pass_k", batch_id=batch_id)

    async def spread(self, batch_id: str) -> Row | None:
        """Run-to-run spread over the sample indexes."""
        found = await self._rows("spread", batch_id=batch_id)
        return found[0] if found else None

    async def _rows(self, name: str, **values: Any) -> list[Row]:
        async with self._reading() as conn:
            return [dict(row) for row in (await conn.execute(_queries()[name], values)).mappings()]

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        async with transaction(self._engine) as conn:
            await conn.execute(text("SET TRANSACTION READ ONLY"))
            yield conn


def _batch_row(row: Row) -> BatchRow:
    return BatchRow(**_only(row, BatchRow.__slots__))


def _only(row: Row, names: Iterable[str]) -> Row:
    return {name: row[name] for name in names}
