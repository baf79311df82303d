"""Registration of a batch: every rollout becomes a row before anything runs. Repeating it changes nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import RowMapping, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from models.batch import RegisterBatch
from models.contract import Contract, Resolved, difference
from models.identity import BATCH_ID, derived_group_id, scoped_group_id
from models.policy import PolicySpec
from models.spec import BatchSpec, contract_of
from rollbook.errors import InvalidInput, SpecConflict
from rollbook.ledger import tables
from rollbook.ledger.catalog import Catalog, members_of
from rollbook.ledger.control import has_open_rows
from rollbook.ledger.records import Registered
from rollbook.ledger.sql import statements
from rollbook.ledger.store import reads, writes
from rollbook.ledger.task_selection import Member, Planned, compare, leave_out, select_tasks

_SQL = statements("planning")
PLAN_DIGEST = _SQL["plan_digest"]
"""Digest over everything that is planned and never changes; a lost or exchanged row changes it."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Identity of the samples of one task; event and source group are None when it is derived."""

    event: str | None
    source_group: str | None
    group: str


class Planning(Catalog):
    """Registration of batches."""

    @reads
    async def registered_launch(self, conn: AsyncConnection, request: RegisterBatch) -> Registered | None:
        """The registration of this launch of the batch; None before it."""
        return await _registered(conn, request.batch_id, 0) if await _is_launched(conn, request) else None

    @writes
    async def register_batch(
        self,
        conn: AsyncConnection,
        request: RegisterBatch,
        *,
        deployment_id: str,
        resolved: Resolved,
        unrunnable: Mapping[str, str] = MappingProxyType({}),
        notice: str = "",
    ) -> Registered:
        """Plan every rollout of a batch; a batch that is planned already is left as it is.

        `unrunnable`: tasks of the set that cannot be run or scored here, with the reasons.

        Raises InvalidInput that names the field of the spec, SpecConflict with the difference when the batch exists
        with another contract or selection.
        """
        spec, batch_id = request.spec, request.batch_id
        if not BATCH_ID.match(batch_id):
            raise InvalidInput(f"batch_id: {batch_id!r}: letters, digits, '_', '.' and '-' only, at most 128")
        # A launch that was registered before keeps what its names meant then.
        if await _is_launched(conn, request):
            return await _registered(conn, batch_id, 0)
        catalog = self.on(conn)
        task_set = await catalog.find_task_set(spec.task_set)
        selected = select_tasks(await members_of(conn, task_set.set_digest), spec.tasks)
        chosen, excluded = leave_out(selected, unrunnable, spec.tasks.on_unrunnable)
        provenance = provenance_of(spec, [task.task_id for task in chosen])
        contract = contract_of(spec, resolved)
        if resolved.script_digest is not None:
            _check_script(await catalog.script_body(resolved.script_digest), spec.policy, chosen)
        await _insert_batch(conn, request, deployment_id, contract)
        await _lock_batch(conn, request, deployment_id, contract)
        compare(await _planned(conn, batch_id), chosen, spec.samples, extend=spec.extend)
        await _check_provenance(conn, batch_id, provenance)
        added = await _plan(conn, request, chosen, provenance)
        await _record_launch(conn, request, deployment_id, task_set.set_digest, added, notice)
        await _exclude(conn, request, excluded, unrunnable)
        return await _registered(conn, batch_id, added)


def provenance_of(spec: BatchSpec, task_ids: Iterable[str]) -> dict[str, Provenance]:
    """The trainer's identity of each chosen task if the spec gives one, else a derived one; raises InvalidInput."""
    if spec.identity is None:
        return {task_id: Provenance(None, None, derived_group_id(task_id)) for task_id in task_ids}
    event = spec.identity.sampling_event_id
    try:
        groups = spec.identity.groups(task_ids, spec.samples)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return {task_id: Provenance(event, group, scoped_group_id(event, group)) for task_id, group in groups.items()}


def _check_script(script: dict[str, Any], policy: PolicySpec, chosen: list[Member]) -> None:
    # A task without steps would do nothing until the step limit and earn a 0.
    without = [task.task_id for task in chosen if task.task_id not in script["tasks"]]
    if not without or script.get("default") is not None:
        return
    names = ", ".join(without[:20]) + (f" and {len(without) - 20} more" if len(without) > 20 else "")
    field, problem = policy.script_source
    raise InvalidInput(f"{field}: {problem} for {names}; leave them out with tasks.ids or tasks.exclude_ids")


async def _registered(conn: AsyncConnection, batch_id: str, added: int) -> Registered:
    counts = select(func.count(), func.count().filter(tables.rollout.c.state == "final")).where(
        tables.rollout.c.batch_id == batch_id
    )
    planned, final = (await conn.execute(counts)).one()
    launch = tables.registration
    newest = (
        select(launch.c.notice).where(launch.c.batch_id == batch_id).order_by(launch.c.launch_index.desc()).limit(1)
    )
    notice = await conn.scalar(newest.limit(1)) or ""
    return Registered(batch_id=batch_id, planned=planned, added=added, final=final, notice=notice)


async def _is_launched(conn: AsyncConnection, request: RegisterBatch) -> bool:
    launch = tables.registration
    query = select(launch.c.launch_index).where(
        launch.c.batch_id == request.batch_id, launch.c.launch_id == request.launch_id
    )
    return await conn.scalar(query) is not None


async def _insert_batch(conn: AsyncConnection, request: RegisterBatch, deployment_id: str, contract: Contract) -> None:
    row = {
        "batch_id": request.batch_id,
        "deployment_id": deployment_id,
        "namespace": request.namespace,
        "contract": contract.document,
        "contract_digest": contract.digest,
        "purpose": contract.purpose,
        "concurrency": request.spec.concurrency,
        "max_attempts": request.spec.max_attempts,
        "launch_id": request.launch_id,
    }
    await conn.execute(insert(tables.batch).values(row).on_conflict_do_nothing())


async def _lock_batch(conn: AsyncConnection, request: RegisterBatch, deployment_id: str, contract: Contract) -> None:
    query = select(tables.batch).where(tables.batch.c.batch_id == request.batch_id).with_for_update(key_share=True)
    row: RowMapping = (await conn.execute(query)).mappings().one()
    if row["contract_digest"] != contract.digest:
        lines = difference(row["contract"], contract.document)
        raise SpecConflict(
            f"batch {request.batch_id} exists with another contract: {'; '.join(lines)}. "
            "Submit the same spec to resume it, or choose a new batch id"
        )
    for name, value, owner in (
        ("deployment", deployment_id, row["deployment_id"]),
        ("namespace", request.namespace, row["namespace"]),
    ):
        if owner != value:
            raise SpecConflict(f"batch {request.batch_id} belongs to {name} {owner!r}, not {value!r}")


async def _planned(conn: AsyncConnection, batch_id: str) -> list[Planned]:
    row = tables.rollout
    query = (
        select(row.c.domain, row.c.task_id, row.c.task_digest, func.count())
        .where(row.c.batch_id == batch_id)
        .group_by(row.c.domain, row.c.task_id, row.c.task_digest)
    )
    return [Planned(*columns) for columns in await conn.execute(query)]


async def _check_provenance(conn: AsyncConnection, batch_id: str, chosen: dict[str, Provenance]) -> None:
    """Raise SpecConflict when planned rows have another identity, or another batch has one of the groups.

    The group of a sampling event belongs to one batch and one task, across the ledger. To sample again, relaunch that
    batch (the same decision) or use a new sampling event (a new one). The batch row must be locked.
    """
    await _check_unchanged(conn, batch_id, chosen)
    event = next(iter(chosen.values())).event  # one spec has one event
    if event is None:
        return
    # Two batches that use the same event at once wait for each other here.
    await conn.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"sampling_event:{event}", 0))))
    groups = [provenance.source_group for provenance in chosen.values()]
    values = {"event": event, "groups": groups, "batch_id": batch_id}
    taken = (await conn.execute(_SQL["taken_group"], values)).first()
    if taken is not None:
        raise SpecConflict(
            f"identity: group {taken.source_group_id!r} of sampling event {event!r} belongs to batch "
            f"{taken.batch_id} (task {taken.task_id}). A retry of that decision relaunches {taken.batch_id}; "
            "a new decision needs a sampling_event_id of its own"
        )


async def _check_unchanged(conn: AsyncConnection, batch_id: str, chosen: dict[str, Provenance]) -> None:
    row = tables.rollout
    query = select(row.c.task_id, row.c.sampling_event_id, row.c.source_group_id).distinct()
    now = next(iter(chosen.values())).event
    for task_id, event, group in await conn.execute(query.where(row.c.batch_id == batch_id).order_by(row.c.task_id)):
        if event != now:
            raise SpecConflict(
                f"identity.sampling_event_id: {event!r} -> {now!r}; a batch belongs to one sampling event: "
                "submit a new one under a new batch id"
            )
        if task_id in chosen and group != chosen[task_id].source_group:
            raise SpecConflict(
                f"identity: the group of task {task_id}: {group!r} -> {chosen[task_id].source_group!r}; "
                "planned rollouts keep their identity"
            )


async def _plan(
    conn: AsyncConnection, request: RegisterBatch, chosen: list[Member], provenance: dict[str, Provenance]
) -> int:
    row = tables.rollout
    first = await conn.scalar(
        select(func.coalesce(func.max(row.c.plan_order) + 1, 0)).where(row.c.batch_id == request.batch_id)
    )
    ordered = [provenance[task.task_id] for task in chosen]
    values = {
        "batch_id": request.batch_id,
        "first": first,
        "domains": [task.domain for task in chosen],
        "ids": [task.task_id for task in chosen],
        "digests": [task.task_digest for task in chosen],
        "events": [identity.event for identity in ordered],
        "sources": [identity.source_group for identity in ordered],
        "groups": [identity.group for identity in ordered],
        "samples": request.spec.samples,
    }
    return (await conn.execute(_SQL["plan"], values)).rowcount


async def _exclude(
    conn: AsyncConnection, request: RegisterBatch, excluded: list[Member], unrunnable: Mapping[str, str]
) -> None:
    rows = [
        {
            **asdict(member),
            "batch_id": request.batch_id,
            "launch_id": request.launch_id,
            "reason": unrunnable[member.task_id],
            "row_digest": "",
        }
        for member in excluded
    ]
    if rows:
        await conn.execute(insert(tables.excluded_task).on_conflict_do_nothing(), rows)


async def _record_launch(
    conn: AsyncConnection, request: RegisterBatch, deployment_id: str, set_digest: str, added: int, notice: str
) -> None:
    """Record a launch once; clear the control flags of earlier launches and take over its operational values."""
    launches = tables.registration
    if await _is_launched(conn, request):  # by a delivery that held the lock before this one
        return
    newest = select(func.coalesce(func.max(launches.c.launch_index), 0)).where(launches.c.batch_id == request.batch_id)
    planned = select(func.count()).select_from(tables.rollout).where(tables.rollout.c.batch_id == request.batch_id)
    row = {
        "batch_id": request.batch_id,
        "launch_id": request.launch_id,
        "launch_index": (await conn.scalar(newest) or 0) + 1,
        "spec": request.spec.model_dump(mode="json"),
        "deployment_id": deployment_id,
        "namespace": request.namespace,
        "set_digest": set_digest,
        "planned": await conn.scalar(planned),
        "added": added,
        "plan_digest": await conn.scalar(PLAN_DIGEST, {"batch_id": request.batch_id}),
        "notice": notice,
        "row_digest": "",
    }
    await conn.execute(launches.insert().values(row))
    control = {
        "paused": False,
        "frozen": False,
        "stopping": False,
        "concurrency": request.spec.concurrency,
        "max_attempts": request.spec.max_attempts,
        "launch_id": request.launch_id,
        "closed_at": None,
    }
    if await has_open_rows(conn, request.batch_id):  # a cancelled batch stays so until it has something to run again
        control |= {"cancelling": False, "control_reason": ""}
    await conn.execute(tables.batch.update().where(tables.batch.c.batch_id == request.batch_id).values(control))
