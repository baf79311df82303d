"""Import of results that ran elsewhere: planned rollouts, attempts, ends and decisions, all of them or nothing."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from models.contract import RecordedContract, difference
from models.gym_results import ImportedRow
from models.identity import BATCH_ID, canonical_json, derived_group_id, rollout_key, trajectory_rollout_id
from models.outcome import RewardMode
from models.task import TaskFilter
from rollbook.errors import InvalidInput, SpecConflict
from rollbook.ledger import tables
from rollbook.ledger.admission import IMPORTED
from rollbook.ledger.catalog import Catalog, members_of
from rollbook.ledger.completion import Keep, complete
from rollbook.ledger.planning import PLAN_DIGEST
from rollbook.ledger.records import Registered
from rollbook.ledger.sanitize import redact_text
from rollbook.ledger.sql import statements
from rollbook.ledger.store import writes
from rollbook.ledger.task_selection import Member, select_tasks

_SQL = statements("imports")


@dataclass(frozen=True, slots=True)
class Source:
    """Results to import, and the batch that they become."""

    batch_id: str
    deployment_id: str
    namespace: str
    task_set: str
    reward_mode: RewardMode
    sha256: str
    """Of the file."""
    rows: Sequence[ImportedRow]
    """In the order of the file, one per row."""
    lines: Sequence[int] = ()
    """Line number of each of them; by default 1, 2, …."""
    model: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A row and the rollout that it becomes."""

    key: str
    member: Member
    row: ImportedRow
    number: int
    order: int


class Imports(Catalog):
    """Import of results that ran elsewhere."""

    @writes
    async def import_results(self, conn: AsyncConnection, source: Source, keep: Keep | None = None) -> Registered:
        """Import the results of a file as one finished batch; the same file again changes nothing.

        Raises InvalidInput that names the row or the field, SpecConflict for a batch that exists with other content.
        """
        batch_id = source.batch_id
        if not BATCH_ID.match(batch_id):
            raise InvalidInput(f"batch_id: {batch_id!r}: letters, digits, '_', '.' and '-' only")
        task_set = await self.on(conn).find_task_set(source.task_set)
        planned = _plan(source, await members_of(conn, task_set.set_digest))
        contract = _contract(source)
        if not await _open(conn, source, contract):
            return Registered(batch_id=batch_id, planned=len(planned), added=0, final=len(planned))
        await _register(conn, source, contract, task_set.set_digest, planned)
        await _record(conn, contract, planned)
        batch = tables.batch
        await conn.execute(batch.update().where(batch.c.batch_id == batch_id).values(closed_at=func.now()))
        await complete(conn, batch_id, keep)  # whole at once: it has a digest as any other
        return Registered(batch_id=batch_id, planned=len(planned), added=len(planned), final=len(planned))


def _plan(source: Source, members: list[Member]) -> list[_Planned]:
    """Each row's rollout, in OSWorld's order; refuses doubled, missing and unknown ones."""
    known = {member.task_id: member for member in members}
    lines: dict[tuple[str, int], int] = {}
    found: dict[tuple[str, int], ImportedRow] = {}
    for line, row in zip(source.lines or range(1, len(source.rows) + 1), source.rows, strict=True):
        if row.task_id not in known:
            raise InvalidInput(f"line {line}: task_id: task set {source.task_set} has no task {row.task_id!r}")
        if (row.task_id, row.sample) in lines:
            first = lines[row.task_id, row.sample]
            raise InvalidInput(f"line {line}: task {row.task_id} rollout {row.sample} is in line {first} already")
        lines[row.task_id, row.sample] = line
        found[row.task_id, row.sample] = row
    if not lines:
        raise InvalidInput("the file holds no result")
    counts = _counts(lines)
    chosen = select_tasks(members, TaskFilter(ids=sorted(counts)))
    order = [(member, sample) for sample in range(max(counts.values())) for member in chosen]
    present = [(member, sample) for member, sample in order if sample < counts[member.task_id]]
    return [
        _Planned(
            key=rollout_key(source.batch_id, member.domain, member.task_id, sample),
            member=member,
            row=found[member.task_id, sample],
            number=lines[member.task_id, sample],
            order=number,
        )
        for number, (member, sample) in enumerate(present)
    ]


def _counts(lines: dict[tuple[str, int], int]) -> dict[str, int]:
    """Samples per task; they are numbered without a gap, or one is missing."""
    samples: dict[str, set[int]] = defaultdict(set)
    for task_id, sample in lines:
        samples[task_id].add(sample)
    for task_id, found in samples.items():
        if len(found) <= max(found):
            missing = next(sample for sample in range(len(found)) if sample not in found)
            raise InvalidInput(
                f"task {task_id}: rollout {missing} of 0..{max(found)} is missing in the file; a batch is imported "
                "whole. Add its row (masked, if it has no result)"
            )
    return {task_id: len(found) for task_id, found in samples.items()}


def _contract(source: Source) -> RecordedContract:
    policy = {"kind": IMPORTED} | ({"model": source.model} if source.model else {})
    document = {
        "schema_version": 1,
        "policy": policy,
        "purpose": "eval",
        "reward_mode": source.reward_mode,
        "resolved": {"null_desktop": False},
        "imported": {"file_sha256": source.sha256, "rows": len(source.rows), "task_set": source.task_set},
    }
    return RecordedContract.read(document)


async def _open(conn: AsyncConnection, source: Source, contract: RecordedContract) -> bool:
    """True if the batch is new; raises SpecConflict when it is another one."""
    row = {
        "batch_id": source.batch_id,
        "deployment_id": source.deployment_id,
        "namespace": source.namespace,
        "contract": contract.document,
        "contract_digest": contract.digest,
        "purpose": contract.purpose,
        "concurrency": 1,
        "max_attempts": 1,
        "launch_id": "import",
    }
    made = insert(tables.batch).values(row).on_conflict_do_nothing().returning(tables.batch.c.batch_id)
    if await conn.scalar(made) is not None:
        return True
    known = await conn.scalar(select(tables.batch.c.contract).where(tables.batch.c.batch_id == source.batch_id))
    if lines := difference(known, contract.document):
        raise SpecConflict(f"batch {source.batch_id} exists with other content: {'; '.join(lines)}")
    return False


async def _register(
    conn: AsyncConnection, source: Source, contract: RecordedContract, set_digest: str, planned: list[_Planned]
) -> None:
    """One registration per number of samples, so that each of them selects exactly what it planned."""
    by_task: dict[str, list[_Planned]] = defaultdict(list)
    for one in planned:
        by_task[one.member.task_id].append(one)
    by_count: dict[int, list[_Planned]] = defaultdict(list)
    for ones in by_task.values():
        by_count[len(ones)] += ones
    total = 0
    for index, (count, ones) in enumerate(sorted(by_count.items()), 1):
        await conn.execute(_SQL["plan"], _columns(source.batch_id, ones))
        total += len(ones)
        launch_id = f"import-{index}"
        spec = {
            "task_set": f"{source.task_set.partition('@')[0]}@{set_digest}",
            "tasks": TaskFilter(ids=sorted({one.member.task_id for one in ones})).model_dump(mode="json"),
            "samples": count,
            "policy": contract.policy.document,
            "note": redact_text(source.note),
        }
        row = {
            "batch_id": source.batch_id,
            "launch_id": launch_id,
            "launch_index": index,
            "spec": spec,
            "deployment_id": source.deployment_id,
            "namespace": source.namespace,
            "set_digest": set_digest,
            "planned": total,
            "added": len(ones),
            "plan_digest": await conn.scalar(PLAN_DIGEST, {"batch_id": source.batch_id}),
            "row_digest": "",
        }
        await conn.execute(tables.registration.insert().values(row))
    batch = tables.batch
    await conn.execute(batch.update().where(batch.c.batch_id == source.batch_id).values(launch_id=launch_id))


def _columns(batch_id: str, ones: list[_Planned]) -> dict[str, Any]:
    return {
        "batch_id": batch_id,
        "keys": [one.key for one in ones],
        "domains": [one.member.domain for one in ones],
        "ids": [one.member.task_id for one in ones],
        "samples": [one.row.sample for one in ones],
        "digests": [one.member.task_digest for one in ones],
        "groups": [derived_group_id(one.member.task_id) for one in ones],
        "orders": [one.order for one in ones],
    }


async def _record(conn: AsyncConnection, contract: RecordedContract, planned: list[_Planned]) -> None:
    keys = [one.key for one in planned]
    attempts = {
        "keys": keys,
        "executions": [uuid.uuid4() for _ in planned],
        "trajectories": [trajectory_rollout_id(_identity(one), contract.policy.name, 1) for one in planned],
    }
    await conn.execute(_SQL["insert_attempts"], attempts)
    await conn.execute(tables.outcome.insert(), [_outcome(one, contract.reward_mode) for one in planned])
    decisions = {
        "keys": keys,
        "admitted": [one.row.admitted for one in planned],
        "policies": [one.row.policy_id for one in planned],
        "reasons": [redact_text(one.row.reason) for one in planned],
        "evidence": [canonical_json(redact_text({"row": one.number, **one.row.said})) for one in planned],
    }
    await conn.execute(_SQL["insert_decisions"], decisions)
    await conn.execute(_SQL["finish"], {"keys": keys})


def _identity(one: _Planned) -> Any:
    return {
        "sampling_event_id": None,
        "task_id": one.member.task_id,
        "group_id": derived_group_id(one.member.task_id),
        "rollout_index": one.row.sample,
    }


def _outcome(one: _Planned, reward_mode: str) -> dict[str, Any]:
    row = one.row
    return {
        "rollout_key": one.key,
        "attempt_index": 1,
        **row.facts.model_dump(),
        "guest_failed": False,
        "steps": row.steps,
        "detail": redact_text(row.detail),
        "termination_reason": redact_text(row.termination_reason),
        "runtime_eligible": row.admitted,
        "runtime_admission_reason": redact_text(row.reason),
        "runtime_admission_policy_id": row.policy_id,
        "score": row.score,
        "reward": row.reward,
        "reward_mode": reward_mode,
        "closed_by": "import",
        "selected": True,
        "next_state": "final",
        "turns": 0,
        "model_calls": 0,
        "evaluations": 0,
        "row_digest": "",
    }
