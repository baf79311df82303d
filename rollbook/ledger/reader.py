"""Reads of the ledger: batches, roll calls, single rollouts, and whole attempts for evidence, exports and replays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from sqlalchemy import text

from models.batch import Counts
from models.contract import Contract, PolicyContract
from models.explain import did_you_mean
from models.task import domain_rank
from rollbook.errors import InvalidInput
from rollbook.ledger.records import CallRecord
from rollbook.ledger.sql import statements
from rollbook.ledger.store import Store
from rollbook.ledger.task_selection import Member, Planned

Row = dict[str, Any]

_SQL = statements("reader")
_CANDIDATES = 10


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
    notice: str | None
    """Something to know about the batch besides errors."""


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt as the ledger holds it."""

    rollout: Row
    """The planned row with the batch's contract and the task's document."""
    attempt: Row
    outcome: Row | None
    """None while it is open."""
    calls: list[CallRecord]
    """Model calls, parser retries included, in their order."""
    turns: list[Row]
    decisions: dict[str, Row]
    """The decision in force per scope: runtime, training."""

    @property
    def key(self) -> str:
        """The rollout."""
        return str(self.rollout["rollout_key"])

    @property
    def attempt_index(self) -> int:
        """Which attempt of it."""
        return int(self.attempt["attempt_index"])

    @property
    def contract(self) -> Contract:
        """The contract of a batch that ran here; raises ValueError for an imported one."""
        return Contract.read(self.rollout["contract"])

    @property
    def policy(self) -> PolicyContract:
        """The policy of the batch's contract, also of an imported one."""
        return PolicyContract.read(self.rollout["contract"]["policy"])

    def decision(self, scope: str) -> Row:
        """The decision in force; a fresh record is not admitted."""
        return self.decisions.get(scope) or {"admitted": False, "reason": None, "policy_id": None, "decided_by": None}


class Reader(Store):
    """Read-only access. Each question is answered from what is committed by then; see `snapshot` for one moment."""

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Self]:
        """This reader with every question answered as of one moment (REPEATABLE READ); it takes no lock.

        While it is open Postgres keeps old row versions: publish results after it.
        """
        async with self.engine.connect() as conn:
            await conn.execution_options(isolation_level="REPEATABLE READ")
            async with conn.begin():
                await conn.execute(text("SET TRANSACTION READ ONLY"))
                # Between two reads the caller writes files.
                await conn.execute(text("SET LOCAL idle_in_transaction_session_timeout = '15min'"))
                yield self.on(conn)

    async def batch(self, batch_id: str) -> BatchRow:
        """One batch; raises InvalidInput that names similar ones."""
        if batch := await self.known_batch(batch_id):
            return batch
        known = [row["batch_id"] for row in await self._rows("batch_ids")]
        hint = did_you_mean(batch_id, known, count=3) or "`rollbook status` lists them"
        raise InvalidInput(f"batch: the ledger has no batch {batch_id!r}; {hint}")

    async def known_batch(self, batch_id: str) -> BatchRow | None:
        """One batch, None if there is none of that id."""
        rows = await self._rows("one_batch", batch_id=batch_id)
        return _batch_row(rows[0]) if rows else None

    async def batches(self, limit: int = 20) -> list[BatchRow]:
        """The newest batches."""
        return [_batch_row(row) for row in await self._rows("newest_batches", limit=limit)]

    async def counts(self, batch_id: str) -> Counts:
        """The roll call in numbers: planned = admitted + masked + running (queued included) + waiting."""
        return Counts(**(await self._rows("counts", batch_id=batch_id))[0])

    async def domains(self, batch_id: str) -> list[Row]:
        """The roll call by domain, in OSWorld's order."""
        return sorted(await self._rows("domains", batch_id=batch_id), key=lambda row: domain_rank(row["domain"]))

    async def excluded(self, batch_id: str) -> list[Row]:
        """Tasks that the batch leaves out, with the reason."""
        return await self._rows("excluded", batch_id=batch_id)

    async def masked(self, batch_id: str) -> list[Row]:
        """Reasons for which rollouts are masked, with their numbers, most frequent first."""
        return await self._rows("masked", batch_id=batch_id)

    async def under_pressure(self, batch_id: str) -> list[Row]:
        """Rollouts that were set up or evaluated on a host under pressure: phase, resource and percent."""
        return await self._rows("under_pressure", batch_id=batch_id)

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

    async def find_rollout(self, part: str) -> str:
        """The one rollout whose key is, begins or ends with `part`; raises InvalidInput that lists candidates."""
        keys = [row["rollout_key"] for row in await self._rows("find", part=part, limit=_CANDIDATES + 1)]
        if not part or not keys:
            raise InvalidInput(
                f"rollout: no key is, begins or ends with {part!r}; `rollbook report BATCH --rollouts` lists them"
            )
        if keys[0] == part or len(keys) == 1:
            return str(keys[0])
        more = " …" if len(keys) > _CANDIDATES else ""
        raise InvalidInput(f"rollout: {part!r} fits several: {', '.join(keys[:_CANDIDATES])}{more}")

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
        return [Planned(**row) for row in await self._rows("planned", batch_id=batch_id)]

    async def rollout(self, key: str) -> Row:
        """One rollout with its attempts, decisions, rerun requests and timeline."""
        row = await self._row("rollout", key=key)
        if row is None:
            raise InvalidInput(f"rollout: the ledger has no rollout {key!r}")
        return row | {
            "attempts": await self._rows("attempts", key=key),
            "decisions": await self._rows("decisions", key=key),
            "reruns": await self._rows("reruns", key=key),
            "timeline": await self._rows("timeline", key=key),
        }

    async def steps(self, key: str, attempt: int) -> list[Row]:
        """Decision, actions and observation of each step of an attempt."""
        return await self._rows("steps", key=key, attempt=attempt)

    async def scoreboard(self, batch_id: str) -> list[Row]:
        """Scores by domain and in all, over both denominators."""
        return await self._rows("scoreboard", batch_id=batch_id)

    async def pass_k(self, batch_id: str) -> list[Row]:
        """pass@k and pass^k."""
        return await self._rows("pass_k", batch_id=batch_id)

    async def spread(self, batch_id: str) -> Row | None:
        """Run-to-run spread over the sample indexes."""
        return await self._row("spread", batch_id=batch_id)

    async def launched_spec(self, batch_id: str) -> Row:
        """The spec of the newest launch, with what a contract leaves out, such as the endpoint; raises InvalidInput."""
        row = await self._row("launched_spec", batch_id=batch_id)
        if row is None:
            raise _no_batch(batch_id)
        return dict(row["spec"])

    async def batch_of(self, batch_id: str) -> Row:
        """A batch with its contract; raises InvalidInput."""
        row = await self._row("batch", batch_id=batch_id)
        if row is None:
            raise _no_batch(batch_id)
        return row

    async def rollouts_of(self, batch_id: str) -> list[Row]:
        """The planned rollouts of a batch, in plan order; raises InvalidInput."""
        rows = await self._rows("planned_rollouts", batch_id=batch_id)
        if not rows:
            raise InvalidInput(f"batch: the ledger has no batch {batch_id!r} with rollouts")
        return rows

    async def group_statistics(self, batch_id: str) -> dict[str, Row]:
        """Group statistics of every final rollout of a batch, by its key; masked members do not count in them."""
        return {row["rollout_key"]: row for row in await self._rows("group_statistics", batch_id=batch_id)}

    async def planned_rollout(self, rollout_key: str) -> Row:
        """A planned row with contract and task document, attempted or not; raises InvalidInput."""
        row = await self._row("planned_rollout", key=rollout_key)
        if row is None:
            raise InvalidInput(f"rollout: the ledger has no rollout {rollout_key!r}")
        return row

    async def recorded(self, rollout_key: str, attempt: int | None = None) -> RecordedAttempt:
        """Everything about one attempt, by default the selected, else the newest one; raises InvalidInput."""
        rollout = await self.planned_rollout(rollout_key)
        index = attempt or rollout["selected_attempt"] or rollout["current_attempt"]
        key = {"key": rollout_key, "attempt": index}
        row = await self._row("attempt", **key)
        if row is None:
            raise InvalidInput(f"attempt: {rollout_key} has no attempt {index or 'yet'}")
        return RecordedAttempt(
            rollout=rollout,
            attempt=row,
            outcome=await self._row("outcome", **key),
            calls=[CallRecord.of(row) for row in await self._rows("calls", **key)],
            turns=await self._rows("turns", **key),
            decisions={row["scope"]: row for row in await self._rows("decisions_in_force", **key)},
        )

    async def _rows(self, name: str, **values: Any) -> list[Row]:
        async with self.reading() as conn:
            return [dict(row) for row in (await conn.execute(_SQL[name], values)).mappings()]

    async def _row(self, name: str, **values: Any) -> Row | None:
        rows = await self._rows(name, **values)
        return rows[0] if rows else None


def _batch_row(row: Row) -> BatchRow:
    return BatchRow(**{name: row[name] for name in BatchRow.__slots__})


def _no_batch(batch_id: str) -> InvalidInput:
    return InvalidInput(f"batch: the ledger has no batch {batch_id!r}; `rollbook status` lists them")
