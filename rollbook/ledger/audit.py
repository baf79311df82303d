"""Audit: proves the roll call of a batch from ledger and artifact store alone, or lists what is wrong."""

import asyncio
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from sqlalchemy import TextClause, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from models.identity import digest
from models.task import TaskFilter
from rollbook.errors import InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.catalog import members_of
from rollbook.ledger.records import AuditReport, Finding
from rollbook.ledger.register import PLAN_DIGEST
from rollbook.ledger.selection import Member, select_tasks

_PARALLEL = 16

_REFERENCED = text("""
    WITH reference (sha256) AS (
        SELECT unnest(ARRAY[screenshot_sha256, accessibility_tree_sha256, terminal_sha256])
        FROM rollout JOIN turn USING (rollout_key) WHERE batch_id = :batch_id
        UNION SELECT unnest(ARRAY[prompt_sha256, response_sha256, image_sha256, tokens_sha256])
        FROM rollout JOIN model_call USING (rollout_key) WHERE batch_id = :batch_id
        UNION SELECT log_sha256 FROM rollout JOIN evaluation USING (rollout_key) WHERE batch_id = :batch_id
    )
    SELECT reference.sha256, artifact.row_digest IS NOT NULL AND artifact.row_digest = seal(artifact) AS recorded
    FROM reference LEFT JOIN artifact ON artifact.sha256 = reference.sha256
    WHERE reference.sha256 IS NOT NULL ORDER BY 1
""")

_PLANNED = text("""
    SELECT task_id, domain, task_digest, count(*) AS number, min(sample) AS first, max(sample) AS last
    FROM rollout WHERE batch_id = :batch_id GROUP BY task_id, domain, task_digest
""")


class Artifacts(Protocol):
    """The artifact store, as far as an audit needs it."""

    async def verify(self, sha256: str) -> Literal["ok", "missing", "corrupt"]:
        """Read an artifact and compare its digest."""
        ...


@cache
def checks() -> dict[str, TextClause]:
    """The named queries of `sql/audit.sql`, in their order."""
    script = (Path(__file__).parent / "sql" / "audit.sql").read_text()
    sections = re.split(r"^-- name: (.+)$", script, flags=re.MULTILINE)[1:]
    return {
        name.strip(): text(query.strip().rstrip(";")) for name, query in zip(sections[::2], sections[1::2], strict=True)
    }


async def audit(engine: AsyncEngine, batch_id: str, artifacts: Artifacts | None = None) -> AuditReport:
    """Audit a batch in one snapshot; without `artifacts` their bytes are not read.

    Raises InvalidInput for a batch that does not exist.
    """
    async with engine.connect() as conn:
        await conn.execution_options(isolation_level="REPEATABLE READ")
        async with conn.begin():
            for setting in ("TRANSACTION READ ONLY", "LOCAL statement_timeout = 0", "LOCAL jit = off"):
                await conn.execute(text(f"SET {setting}"))
            found, planned, final = await _ledger(conn, batch_id)
            references = (await conn.execute(_REFERENCED, {"batch_id": batch_id})).all()
    found += [
        Finding("artifact_record", sha256, "the ledger's record of the artifact is missing or was changed")
        for sha256, recorded in references
        if not recorded
    ]
    if artifacts is not None:
        found += await _artifacts(artifacts, [sha256 for sha256, _ in references])
    notices = [finding for finding in found if finding.kind.startswith("notice ")]
    findings = [finding for finding in found if not finding.kind.startswith("notice ")]
    return AuditReport(
        batch_id=batch_id,
        ok=not findings,
        planned=planned,
        final=final,
        findings=findings,
        notices=[Finding(notice.kind.removeprefix("notice "), notice.subject, notice.detail) for notice in notices],
        artifacts_checked=0 if artifacts is None else len(references),
    )


async def _ledger(conn: AsyncConnection, batch_id: str) -> tuple[list[Finding], int, int]:
    values = {"batch_id": batch_id}
    if await conn.scalar(select(tables.batch.c.batch_id).where(tables.batch.c.batch_id == batch_id)) is None:
        raise InvalidInput(f"batch: the ledger has no batch {batch_id!r}; `rollbook status` lists them")
    found = await _plan(conn, batch_id)
    for kind, query in checks().items():
        found += [Finding(kind, row.subject, row.detail) for row in await conn.execute(query, values)]
    numbers = "SELECT count(*), count(*) FILTER (WHERE state = 'final') FROM rollout WHERE batch_id = :batch_id"
    planned, final = (await conn.execute(text(numbers), values)).one()
    return found, planned, final


async def _plan(conn: AsyncConnection, batch_id: str) -> list[Finding]:
    """Every registration selects its tasks again; their union must be what is planned, row by row.

    Only what selects is read of a spec: the rest of an old one need not fit the models of today.
    """
    launch = tables.registration
    query = select(*launch.c["spec", "set_digest", "plan_digest"]).where(launch.c.batch_id == batch_id)
    launches = (await conn.execute(query.order_by(launch.c.launch_index))).all()
    found: list[Finding] = []
    samples: dict[Member, int] = {}
    for raw, set_digest, _ in launches:
        members = await members_of(conn, set_digest)
        if set_digest != digest(sorted([member.domain, member.task_id, member.task_digest] for member in members)):
            found.append(Finding("set_digest", set_digest, "the members of the task set do not have its digest"))
            continue
        try:
            wanted, number = TaskFilter.model_validate(raw["tasks"]), int(raw["samples"])
            chosen = select_tasks(members, wanted)
        except (KeyError, TypeError, ValueError, InvalidInput) as error:
            found.append(Finding("registration", batch_id, f"a registered spec does not fit its task set: {error}"))
            continue
        for member in chosen:
            samples[member] = max(samples.get(member, 0), number)
    found += await _compare_plan(conn, batch_id, samples)
    if launches and await conn.scalar(text(PLAN_DIGEST), {"batch_id": batch_id}) != launches[-1].plan_digest:
        found.append(Finding("plan_digest", batch_id, "the planned rows are not those that were registered"))
    return found


async def _compare_plan(conn: AsyncConnection, batch_id: str, samples: dict[Member, int]) -> list[Finding]:
    rows = (await conn.execute(_PLANNED, {"batch_id": batch_id})).all()
    held = {Member(row.domain, row.task_id, row.task_digest): row for row in rows}
    found = []
    for member, number in samples.items():
        row = held.get(member)
        if row is None or (row.number, row.first, row.last) != (number, 0, number - 1):
            there = 0 if row is None else row.number
            detail = f"{there} of {number} registered samples are planned"
            found.append(Finding("plan", f"{batch_id}/{member.domain}/{member.task_id}", detail))
    for member in held.keys() - samples.keys():
        detail = "planned, but no registration selects this version of the task"
        found.append(Finding("plan", f"{batch_id}/{member.domain}/{member.task_id}", detail))
    return found


async def _artifacts(artifacts: Artifacts, digests: Iterable[str]) -> list[Finding]:
    limit = asyncio.Semaphore(_PARALLEL)

    async def look(sha256: str) -> Finding | None:
        async with limit:
            state = await artifacts.verify(sha256)
        detail = {"missing": "it is not in the artifact store", "corrupt": "its bytes do not have its digest"}
        return None if state == "ok" else Finding(f"artifact_{state}", sha256, detail[state])

    looked = await asyncio.gather(*(look(sha256) for sha256 in digests))
    return [finding for finding in looked if finding is not None]
