"""Registration of a batch: every rollout becomes a row before anything runs. Repeating it changes nothing."""

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from models.batch import RegisterBatch
from models.contract import Contract, Resolved, difference
from models.identity import BATCH_ID
from models.policy import PolicySpec
from models.spec import contract_of
from rollbook.errors import InvalidInput, SpecConflict
from rollbook.ledger import tables
from rollbook.ledger.caller import Identity, identities, require_identity
from rollbook.ledger.catalog import find_task_set, members_of, script_body
from rollbook.ledger.control import has_open_rows
from rollbook.ledger.records import Registered
from rollbook.ledger.selection import Member, Planned, compare, select_tasks

PLAN_DIGEST = """
    SELECT encode(sha256(convert_to(string_agg(concat_ws(' ', rollout_key, task_digest, identity_source,
        sampling_event_id, source_group_id, group_id, rollout_index, plan_order, extract(epoch FROM planned_at)),
        E'\\n' ORDER BY rollout_key COLLATE "C"), 'UTF8')), 'hex')
    FROM rollout WHERE batch_id = :batch_id
"""
"""Digest over everything that is planned and never changes; a lost or exchanged row changes it."""

_PLAN = text("""
    INSERT INTO rollout (rollout_key, batch_id, domain, task_id, sample, task_digest, identity_source,
                         sampling_event_id, source_group_id, group_id, rollout_index, plan_order)
    SELECT concat_ws('/', CAST(:batch_id AS text), domain, task_id, sample), :batch_id, domain, task_id, sample,
           task_digest, CASE WHEN event IS NULL THEN 'derived' ELSE 'caller' END, event, source, group_id, sample,
           CAST(:first AS integer) + row_number() OVER (ORDER BY sample, place) - 1
    FROM unnest(CAST(:domains AS text[]), CAST(:ids AS text[]), CAST(:digests AS text[]), CAST(:events AS text[]),
                CAST(:sources AS text[]), CAST(:groups AS text[]))
         WITH ORDINALITY AS task (domain, task_id, task_digest, event, source, group_id, place)
    CROSS JOIN generate_series(0, CAST(:samples AS integer) - 1) AS sample
    WHERE NOT EXISTS (
        SELECT FROM rollout AS old
        WHERE old.batch_id = :batch_id AND old.task_id = task.task_id AND old.sample = sample.sample)
    ON CONFLICT (rollout_key) DO NOTHING
""")


async def register_batch(
    conn: AsyncConnection, request: RegisterBatch, *, deployment_id: str, resolved: Resolved
) -> Registered:
    """Plan the rollouts of a batch, or find that they are planned.

    Raises InvalidInput that names the field of the spec, SpecConflict with the difference when the batch exists with
    another contract or selection.
    """
    if not BATCH_ID.match(request.batch_id):
        raise InvalidInput(f"batch_id: {request.batch_id!r}: letters, digits, '_', '.' and '-' only, at most 128")
    if await _launched(conn, request):
        return await _registered(conn, request.batch_id, 0)
    task_set = await find_task_set(conn, request.spec.task_set)
    chosen = select_tasks(await members_of(conn, task_set.set_digest), request.spec.tasks)
    identity = identities(request.spec, [task.task_id for task in chosen])
    contract = contract_of(request.spec, resolved)
    await _require_steps(conn, request.spec.policy, resolved.script_digest, chosen)
    await _open(conn, request, deployment_id, contract)
    await _lock(conn, request, deployment_id, contract)
    compare(await _planned(conn, request.batch_id), chosen, request.spec.samples, extend=request.spec.extend)
    await require_identity(conn, request.batch_id, identity)
    added = await _plan(conn, request, chosen, identity)
    await _launch(conn, request, deployment_id, task_set.set_digest, added)
    return await _registered(conn, request.batch_id, added)


async def _require_steps(
    conn: AsyncConnection, policy: PolicySpec, script_digest: str | None, chosen: list[Member]
) -> None:
    """Refuse a script without steps for a chosen task: it would do nothing there until the step limit, and earn a 0."""
    if script_digest is None:
        return
    script = await script_body(conn, script_digest)
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
    return Registered(batch_id=batch_id, planned=planned, added=added, final=final)


async def _launched(conn: AsyncConnection, request: RegisterBatch) -> bool:
    """Whether this launch is registered: what its names mean was settled then, whatever they mean by now."""
    launches = tables.registration
    known = select(launches.c.launch_index).where(
        launches.c.batch_id == request.batch_id, launches.c.launch_id == request.launch_id
    )
    return await conn.scalar(known) is not None


async def _open(conn: AsyncConnection, request: RegisterBatch, deployment_id: str, contract: Contract) -> None:
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


async def _lock(conn: AsyncConnection, request: RegisterBatch, deployment_id: str, contract: Contract) -> None:
    query = select(tables.batch).where(tables.batch.c.batch_id == request.batch_id).with_for_update(key_share=True)
    found = (await conn.execute(query)).mappings().one()
    if found["contract_digest"] != contract.digest:
        lines = difference(found["contract"], contract.document)
        raise SpecConflict(
            f"batch {request.batch_id} exists with another contract: {'; '.join(lines)}. "
            "Submit the same spec to resume it, or choose a new batch id"
        )
    for name, given in (("deployment", deployment_id), ("namespace", request.namespace)):
        known = found["deployment_id" if name == "deployment" else name]
        if known != given:
            raise SpecConflict(f"batch {request.batch_id} belongs to {name} {known!r}, not {given!r}")


async def _planned(conn: AsyncConnection, batch_id: str) -> list[Planned]:
    row = tables.rollout
    query = (
        select(row.c.domain, row.c.task_id, row.c.task_digest, func.count())
        .where(row.c.batch_id == batch_id)
        .group_by(row.c.domain, row.c.task_id, row.c.task_digest)
    )
    return [Planned(*found) for found in await conn.execute(query)]


async def _plan(
    conn: AsyncConnection, request: RegisterBatch, chosen: list[Member], identity: dict[str, Identity]
) -> int:
    row = tables.rollout
    first = await conn.scalar(
        select(func.coalesce(func.max(row.c.plan_order) + 1, 0)).where(row.c.batch_id == request.batch_id)
    )
    own = [identity[task.task_id] for task in chosen]
    values = {
        "batch_id": request.batch_id,
        "first": first,
        "domains": [task.domain for task in chosen],
        "ids": [task.task_id for task in chosen],
        "digests": [task.task_digest for task in chosen],
        "events": [one.event for one in own],
        "sources": [one.source_group for one in own],
        "groups": [one.group for one in own],
        "samples": request.spec.samples,
    }
    return (await conn.execute(_PLAN, values)).rowcount


async def _launch(
    conn: AsyncConnection, request: RegisterBatch, deployment_id: str, set_digest: str, added: int
) -> None:
    """Once per launch: note it, clear the control flags of earlier launches, take over operational values."""
    launches = tables.registration
    if await _launched(conn, request):  # by a delivery that held the lock before us
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
        "plan_digest": await conn.scalar(text(PLAN_DIGEST), {"batch_id": request.batch_id}),
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
