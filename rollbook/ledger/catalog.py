"""Tasks, task sets, policy scripts and artifacts: content-addressed, insert-only, the newest name wins."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from models.evidence import ArtifactRef
from models.identity import canonical_json, digest
from models.sanitize import sanitize
from models.task import Task, set_digest
from rollbook.errors import InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.records import RegisteredSet
from rollbook.ledger.selection import Member

_INSERT_TASKS = text("""
    INSERT INTO task (task_digest, task_id, document)
    SELECT task_digest, task_id, document::json
    FROM unnest(CAST(:digests AS text[]), CAST(:ids AS text[]), CAST(:documents AS text[]))
        AS new (task_digest, task_id, document)
    ON CONFLICT DO NOTHING
""")

_INSERT_MEMBERS = text("""
    INSERT INTO task_set_member (set_digest, task_id, domain, task_digest)
    SELECT :set_digest, * FROM unnest(CAST(:ids AS text[]), CAST(:domains AS text[]), CAST(:digests AS text[]))
    ON CONFLICT DO NOTHING
""")


async def register_task_set(conn: AsyncConnection, name: str, tasks: list[Task]) -> RegisteredSet:
    """Register `tasks` under `name`; the same tasks again change nothing."""
    _require_whole(name, tasks)
    address = set_digest(tasks)
    await _serialise(conn, f"task_set:{name}")
    columns = {
        "ids": [task.task_id for task in tasks],
        "domains": [task.domain for task in tasks],
        "digests": [task.task_digest for task in tasks],
    }
    documents = [canonical_json(task.document) for task in tasks]
    added = (await conn.execute(_INSERT_TASKS, columns | {"documents": documents})).rowcount
    await conn.execute(_INSERT_MEMBERS, columns | {"set_digest": address})
    if await _newest(conn, tables.task_set, "set_digest", name) != address:
        row = {"name": name, "set_digest": address, "task_count": len(tasks)}
        await conn.execute(tables.task_set.insert().values(row))
    return RegisteredSet(name=name, set_digest=address, tasks=len(tasks), added=added)


def _require_whole(name: str, tasks: list[Task]) -> None:
    if not tasks:
        raise InvalidInput(f"task set {name}: it holds no task")
    seen: dict[str, str] = {}
    for task in tasks:
        if sanitize(task.document) != task.document:
            raise InvalidInput(
                f"task {task.task_id}: the document holds a NUL or an unpaired surrogate, which Postgres cannot hold"
            )
        if task.task_id in seen:
            raise InvalidInput(
                f"task set {name}: task {task.task_id} is in both {seen[task.task_id]} and {task.domain}; "
                "an id may occur once"
            )
        seen[task.task_id] = task.domain


async def _serialise(conn: AsyncConnection, name: str) -> None:
    """One registration under one name at a time: otherwise two could both see the other one as the newest."""
    await conn.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))


async def _newest(conn: AsyncConnection, table: Any, column: str, name: str) -> str | None:
    query = select(table.c[column]).where(table.c.name == name).order_by(table.c.registration.desc()).limit(1)
    found: str | None = await conn.scalar(query)
    return found


async def _find(conn: AsyncConnection, table: Any, column: str, ref: str, what: str) -> tuple[str, str]:
    """(name, digest) of `name` or `name@digest`; raises InvalidInput that says what there is."""
    name, _, prefix = ref.partition("@")
    query = (
        select(table.c[column])
        .where(table.c.name == name, table.c[column].startswith(prefix, autoescape=True))
        .order_by(table.c.registration.desc())
    )
    found = list(dict.fromkeys((await conn.scalars(query)).all()))
    if prefix and len(found) > 1:
        raise InvalidInput(f"{what}: {ref!r} fits several registrations; give more digits")
    if found:
        return name, found[0]
    known = (await conn.scalars(select(table.c.name).distinct().order_by(table.c.name).limit(20))).all()
    listing = ", ".join(known) or "none yet"
    raise InvalidInput(f"{what}: {ref!r} is not registered (registered: {listing})")


async def find_task_set(conn: AsyncConnection, ref: str) -> RegisteredSet:
    """The set that `name` or `name@digest` means now."""
    name, address = await _find(conn, tables.task_set, "set_digest", ref, "task_set")
    member = tables.task_set_member
    count = await conn.scalar(select(func.count()).select_from(member).where(member.c.set_digest == address))
    return RegisteredSet(name=name, set_digest=address, tasks=count or 0, added=0)


async def members_of(conn: AsyncConnection, address: str) -> list[Member]:
    """The tasks of a set, without their documents."""
    member = tables.task_set_member
    query = select(*member.c["domain", "task_id", "task_digest"]).where(member.c.set_digest == address)
    return [Member(*row) for row in await conn.execute(query)]


async def tasks_of(conn: AsyncConnection, address: str, ids: Iterable[str] | None = None) -> list[Task]:
    """The tasks of a set, with their documents, by task id."""
    member, task = tables.task_set_member, tables.task
    query = (
        select(member.c.task_id, member.c.domain, member.c.task_digest, task.c.document)
        .join_from(member, task, member.c.task_digest == task.c.task_digest)
        .where(member.c.set_digest == address)
        .order_by(member.c.task_id)
    )
    if ids is not None:
        query = query.where(member.c.task_id.in_(list(ids)))
    return [Task(**row) for row in (await conn.execute(query)).mappings()]


async def register_script(conn: AsyncConnection, name: str, body: dict[str, Any]) -> str:
    """Register a script under `name`; its digest."""
    if sanitize(body) != body:
        raise InvalidInput(f"script {name}: it holds a NUL or an unpaired surrogate, which Postgres cannot hold")
    address = digest(body)
    await _serialise(conn, f"policy_script:{name}")
    row = {"script_digest": address, "body": body}
    await conn.execute(insert(tables.policy_script).values(row).on_conflict_do_nothing())
    if await _newest(conn, tables.policy_script_name, "script_digest", name) != address:
        await conn.execute(tables.policy_script_name.insert().values(name=name, script_digest=address))
    return address


async def find_script(conn: AsyncConnection, ref: str) -> str:
    """Digest of the script that `name` or `name@digest` means now."""
    return (await _find(conn, tables.policy_script_name, "script_digest", ref, "policy.script"))[1]


async def script_body(conn: AsyncConnection, script_digest: str) -> dict[str, Any]:
    """The script file with this digest."""
    table = tables.policy_script
    body: dict[str, Any] | None = await conn.scalar(select(table.c.body).where(table.c.script_digest == script_digest))
    if body is None:
        raise InvalidInput(f"policy.script: no script with digest {script_digest}")
    return body


_RECORD = insert(tables.artifact).on_conflict_do_nothing()


async def record_artifacts(conn: AsyncConnection, refs: Iterable[ArtifactRef | None]) -> None:
    """Note bytes that the artifact store holds already; rows that refer to them come after this."""
    rows = {ref.sha256: ref for ref in refs if ref is not None}
    for key in sorted(rows):  # always in one order, so that two writers of the same artifacts cannot deadlock
        await conn.execute(_RECORD, rows[key].model_dump() | {"row_digest": ""})
