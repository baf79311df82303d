"""Tasks, task sets, policy scripts and artifacts: content-addressed, insert-only; the newest name wins."""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from models.evidence import ArtifactRef
from models.identity import canonical_json, digest
from models.sanitize import find_unstorable, sanitize
from models.task import Task, set_digest
from rollbook.errors import InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.records import RegisteredSet
from rollbook.ledger.sql import statements
from rollbook.ledger.store import Store, reads, writes
from rollbook.ledger.task_selection import Member
from rollbook.osworld.capabilities import validate_task

_SQL = statements("catalog")
_INSERT_ARTIFACT = insert(tables.artifact).on_conflict_do_nothing()
_NOT_STORABLE = "a NUL or an unpaired surrogate, which Postgres cannot hold"


class Catalog(Store):
    """Task sets, scripts and artifacts: what batches are made of."""

    @writes
    async def register_task_set(self, conn: AsyncConnection, name: str, tasks: list[Task]) -> RegisteredSet:
        """Register tasks under a name; the same tasks again change nothing.

        Raises InvalidInput for an empty set, a repeated task or a document that Postgres cannot hold.
        """
        _check_tasks(name, tasks)
        address = set_digest(tasks)
        await _lock_name(conn, f"task_set:{name}")
        columns = {
            "ids": [task.task_id for task in tasks],
            "domains": [task.domain for task in tasks],
            "digests": [task.task_digest for task in tasks],
        }
        documents = {
            "documents": [canonical_json(task.document) for task in tasks],
            "unscorable": ["; ".join(validate_task(task.document)) or None for task in tasks],
        }
        added = (await conn.execute(_SQL["insert_tasks"], columns | documents)).rowcount
        await conn.execute(_SQL["insert_members"], columns | {"set_digest": address})
        if await _newest(conn, tables.task_set, "set_digest", name) != address:
            row = {"name": name, "set_digest": address, "task_count": len(tasks)}
            await conn.execute(tables.task_set.insert().values(row))
        return RegisteredSet(name=name, set_digest=address, tasks=len(tasks), added=added)

    @reads
    async def find_task_set(self, conn: AsyncConnection, ref: str) -> RegisteredSet:
        """The set that `name` or `name@digest` means now; raises InvalidInput that lists the registered names."""
        name, address = await _find(conn, tables.task_set, "set_digest", ref, "task_set")
        member = tables.task_set_member
        count = await conn.scalar(select(func.count()).select_from(member).where(member.c.set_digest == address))
        return RegisteredSet(name=name, set_digest=address, tasks=count or 0, added=0)

    @reads
    async def tasks_of(self, conn: AsyncConnection, address: str, ids: Iterable[str] | None = None) -> list[Task]:
        """The tasks of a set, with their documents, ordered by task id; `ids`: only these."""
        member, task = tables.task_set_member, tables.task
        query = (
            select(*member.c["task_id", "domain", "task_digest"], *task.c["document", "unscorable"])
            .join_from(member, task, member.c.task_digest == task.c.task_digest)
            .where(member.c.set_digest == address)
            .order_by(member.c.task_id)
        )
        if ids is not None:
            query = query.where(member.c.task_id.in_(list(ids)))
        return [Task(**row) for row in (await conn.execute(query)).mappings()]

    @writes
    async def register_script(self, conn: AsyncConnection, name: str, body: dict[str, Any]) -> str:
        """Register a script file under a name; returns its digest."""
        if find_unstorable(body) is not None:
            raise InvalidInput(f"script {name}: it holds {_NOT_STORABLE}")
        address = digest(body)
        await _lock_name(conn, f"policy_script:{name}")
        row = {"script_digest": address, "body": body}
        await conn.execute(insert(tables.policy_script).values(row).on_conflict_do_nothing())
        if await _newest(conn, tables.policy_script_name, "script_digest", name) != address:
            await conn.execute(tables.policy_script_name.insert().values(name=name, script_digest=address))
        return address

    @reads
    async def find_script(self, conn: AsyncConnection, ref: str) -> str:
        """Digest of the script that `name` or `name@digest` means now; raises InvalidInput."""
        return (await _find(conn, tables.policy_script_name, "script_digest", ref, "policy.script"))[1]

    @reads
    async def script_body(self, conn: AsyncConnection, script_digest: str) -> dict[str, Any]:
        """The script file with this digest; raises InvalidInput."""
        table = tables.policy_script
        query = select(table.c.body).where(table.c.script_digest == script_digest)
        body: dict[str, Any] | None = await conn.scalar(query)
        if body is None:
            raise InvalidInput(f"policy.script: no script with digest {script_digest}")
        return body

    @writes
    async def record_image(
        self, conn: AsyncConnection, digest: str, provider: str, name: str, manifest: str | None
    ) -> None:
        """Record an image of desktops and its manifest; the same image again changes nothing."""
        row = {"digest": digest, "provider": provider, "name": name, "manifest": _json_object(manifest)}
        await conn.execute(insert(tables.image).values(row).on_conflict_do_nothing())

    @reads
    async def image_manifest(self, conn: AsyncConnection, digest: str) -> str | None:
        """The manifest of a recorded image, as JSON; None when it has none."""
        manifest = await conn.scalar(select(tables.image.c.manifest).where(tables.image.c.digest == digest))
        return None if manifest is None else json.dumps(manifest)

    @writes
    async def record_artifacts(self, conn: AsyncConnection, refs: Iterable[ArtifactRef | None]) -> None:
        """Record artifacts that the artifact store holds."""
        await insert_artifacts(conn, refs)


def _json_object(text: str | None) -> Any:
    """The manifest of an image as JSON; None for anything but a JSON object."""
    try:
        value = None if text is None else json.loads(text)
    except ValueError:
        return None
    return sanitize(value) if isinstance(value, dict) else None


def _check_tasks(name: str, tasks: list[Task]) -> None:
    if not tasks:
        raise InvalidInput(f"task set {name}: it holds no task")
    seen: dict[str, str] = {}
    for task in tasks:
        if find_unstorable(task.document) is not None:
            raise InvalidInput(f"task {task.task_id}: the document holds {_NOT_STORABLE}")
        if task.task_id in seen:
            raise InvalidInput(
                f"task set {name}: task {task.task_id} is in both {seen[task.task_id]} and {task.domain}; "
                "an id may occur once"
            )
        seen[task.task_id] = task.domain


async def _lock_name(conn: AsyncConnection, name: str) -> None:
    # Without this lock two registrations under one name could each see the other's as the newest.
    await conn.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))


async def _newest(conn: AsyncConnection, table: Any, column: str, name: str) -> str | None:
    query = select(table.c[column]).where(table.c.name == name).order_by(table.c.registration.desc()).limit(1)
    newest: str | None = await conn.scalar(query)
    return newest


async def _find(conn: AsyncConnection, table: Any, column: str, ref: str, what: str) -> tuple[str, str]:
    """(name, digest) of `name` or `name@digest`; raises InvalidInput that lists the registered names."""
    name, _, prefix = ref.partition("@")
    query = (
        select(table.c[column])
        .where(table.c.name == name, table.c[column].startswith(prefix, autoescape=True))
        .order_by(table.c.registration.desc())
    )
    digests = list(dict.fromkeys((await conn.scalars(query)).all()))
    if prefix and len(digests) > 1:
        raise InvalidInput(f"{what}: {ref!r} fits several registrations; give more digits")
    if digests:
        return name, digests[0]
    names = (await conn.scalars(select(table.c.name).distinct().order_by(table.c.name).limit(20))).all()
    listing = ", ".join(names) or "none yet"
    raise InvalidInput(f"{what}: {ref!r} is not registered (registered: {listing})")


async def members_of(conn: AsyncConnection, address: str) -> list[Member]:
    """The tasks of a set, without their documents."""
    member = tables.task_set_member
    query = select(*member.c["domain", "task_id", "task_digest"]).where(member.c.set_digest == address)
    return [Member(*row) for row in await conn.execute(query)]


async def insert_artifacts(conn: AsyncConnection, refs: Iterable[ArtifactRef | None]) -> None:
    """Record artifacts that the artifact store holds, before the rows that refer to them."""
    rows = {ref.sha256: ref for ref in refs if ref is not None}
    for key in sorted(rows):  # one order for all writers: two of them with the same artifacts cannot deadlock
        await conn.execute(_INSERT_ARTIFACT, rows[key].model_dump() | {"row_digest": ""})
