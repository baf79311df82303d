"""Audit: proof of a batch's roll call from ledger and artifact store alone, or a list of what is wrong."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, Protocol

from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from models.identity import digest
from models.task import TaskFilter, recorded_filter
from rollbook.errors import ArtifactError, InvalidInput
from rollbook.ledger import tables
from rollbook.ledger.catalog import members_of
from rollbook.ledger.completion import Completion, appended, completions_of, digest_of, gone, read_record
from rollbook.ledger.planning import PLAN_DIGEST
from rollbook.ledger.records import AuditReport, Finding
from rollbook.ledger.sql import statements
from rollbook.ledger.store import Store
from rollbook.ledger.task_selection import Member, select_tasks

_PARALLEL = 16

_SQL = statements("audit")
_CHECKS = statements("audit_checks")


class Artifacts(Protocol):
    """The artifact store, as far as an audit needs it."""

    async def verify(self, sha256: str) -> Literal["ok", "missing", "corrupt"]:
        """Read an artifact and compare its digest."""
        ...

    async def get(self, sha256: str) -> bytes:
        """The bytes of an artifact; raises ArtifactError when they are missing or do not have its digest."""
        ...


class Audits(Store):
    """The audit of a batch."""

    async def audit(self, batch_id: str, artifacts: Artifacts | None = None, expect: str | None = None) -> AuditReport:
        """Prove the roll call of a batch in one snapshot, or list what is wrong; raises InvalidInput.

        Without `artifacts` the bytes of the artifacts are not read, and so no record of a completion.
        `expect`: a digest that the batch had when it was complete.
        """
        async with self.engine.connect() as conn:
            await conn.execution_options(isolation_level="REPEATABLE READ")
            async with conn.begin():
                for setting in ("TRANSACTION READ ONLY", "LOCAL statement_timeout = 0", "LOCAL jit = off"):
                    await conn.execute(text(f"SET {setting}"))
                findings, counts = await _check_ledger(conn, batch_id)
                references = (await conn.execute(_SQL["references"], {"batch_id": batch_id})).all()
                completions = await completions_of(conn, batch_id)
                current = await read_record(conn, batch_id)
        findings += [
            Finding("artifact_record", sha256, "the ledger's record of the artifact is missing or was changed")
            for sha256, recorded in references
            if not recorded
        ]
        if artifacts is not None:
            findings += await _check_artifacts(artifacts, [sha256 for sha256, _ in references])
            findings += await _check_records(artifacts, batch_id, completions, current, expect)
        if expect is not None and expect not in {completion.digest for completion in completions}:
            findings.append(Finding("expected_digest", batch_id, f"no completion of the batch has the digest {expect}"))
        errors = [finding for finding in findings if not finding.kind.startswith("notice ")]
        return AuditReport(
            batch_id=batch_id,
            ok=not errors,
            planned=counts.planned,
            final=counts.final,
            excluded=counts.excluded,
            findings=errors,
            notices=[
                replace(finding, kind=finding.kind.removeprefix("notice "))
                for finding in findings
                if finding.kind.startswith("notice ")
            ],
            artifacts_checked=0 if artifacts is None else len(references),
            digest=digest_of(current),
            completions=[completion.digest for completion in completions],
        )


async def _check_ledger(conn: AsyncConnection, batch_id: str) -> tuple[list[Finding], Row[Any]]:
    values = {"batch_id": batch_id}
    if await conn.scalar(select(tables.batch.c.batch_id).where(tables.batch.c.batch_id == batch_id)) is None:
        raise InvalidInput(f"batch: the ledger has no batch {batch_id!r}; `rollbook status` lists them")
    findings = await _check_plan(conn, batch_id)
    for kind, query in _CHECKS.items():
        findings += [Finding(kind, row.subject, row.detail) for row in await conn.execute(query, values)]
    return findings, (await conn.execute(_SQL["counts"], values)).one()


async def _check_plan(conn: AsyncConnection, batch_id: str) -> list[Finding]:
    """Select the tasks of every registration again; their union must be exactly the planned rows."""
    launch = tables.registration
    query = select(*launch.c["spec", "set_digest", "plan_digest"]).where(launch.c.batch_id == batch_id)
    launches = (await conn.execute(query.order_by(launch.c.launch_index))).all()
    findings: list[Finding] = []
    samples: dict[Member, int] = {}
    for raw, set_digest, _ in launches:
        members = await members_of(conn, set_digest)
        if set_digest != digest(sorted([member.domain, member.task_id, member.task_digest] for member in members)):
            findings.append(Finding("set_digest", set_digest, "the members of the task set do not have its digest"))
            continue
        try:
            # Only the selection is read: the rest of an old spec need not fit the models of today.
            wanted = TaskFilter.model_validate(recorded_filter(dict(raw["tasks"])))
            number, chosen = int(raw["samples"]), select_tasks(members, wanted)
        except (KeyError, TypeError, ValueError, InvalidInput) as error:
            findings.append(Finding("registration", batch_id, f"a registered spec does not fit its task set: {error}"))
            continue
        for member in chosen:
            samples[member] = max(samples.get(member, 0), number)
    out = tables.excluded_task
    excluded = await conn.execute(select(*out.c["domain", "task_id", "task_digest"]).where(out.c.batch_id == batch_id))
    for member in (Member(*row) for row in excluded):
        if samples.pop(member, None) is None:
            subject = f"{batch_id}/{member.domain}/{member.task_id}"
            findings.append(Finding("excluded_task", subject, "excluded, but no registration selects it"))
    findings += await _compare_plan(conn, batch_id, samples)
    if launches and await conn.scalar(PLAN_DIGEST, {"batch_id": batch_id}) != launches[-1].plan_digest:
        findings.append(Finding("plan_digest", batch_id, "the planned rows are not those that were registered"))
    return findings


async def _compare_plan(conn: AsyncConnection, batch_id: str, samples: dict[Member, int]) -> list[Finding]:
    rows = (await conn.execute(_SQL["planned"], {"batch_id": batch_id})).all()
    held = {Member(row.domain, row.task_id, row.task_digest): row for row in rows}
    findings = []
    for member, number in samples.items():
        row = held.get(member)
        if row is None or (row.number, row.first, row.last) != (number, 0, number - 1):
            there = 0 if row is None else row.number
            detail = f"{there} of {number} registered samples are planned"
            findings.append(Finding("plan", f"{batch_id}/{member.domain}/{member.task_id}", detail))
    for member in held.keys() - samples.keys():
        detail = "planned, but no registration selects this version of the task"
        findings.append(Finding("plan", f"{batch_id}/{member.domain}/{member.task_id}", detail))
    return findings


async def _check_records(
    artifacts: Artifacts, batch_id: str, completions: list[Completion], current: bytes, expect: str | None
) -> list[Finding]:
    """Compare the rows with what was recorded of them whenever the batch was complete; explain what came later."""
    names = {one.digest: f"completion {one.completion_index} ({one.recorded_at:%Y-%m-%d %H:%M})" for one in completions}
    findings: list[Finding] = []
    since = ""
    expected = {} if expect is None else {expect: "the expected digest"}
    for digest_, name in (expected | names).items():
        try:
            record = await artifacts.get(digest_)
        except ArtifactError as error:
            findings.append(Finding("completion_record", batch_id, f"the record of {name}: {error}"))
            continue
        for line in gone(record, current):
            findings.append(
                Finding("completion_changed", _subject(line), f"{name} recorded {line!r}; it is not so now")
            )
        since = f"since {name}: " + ", ".join(f"{number} {kind}" for kind, number in appended(record, current).items())
    if completions and completions[-1].digest != digest_of(current) and not findings:
        findings.append(Finding("notice appended", batch_id, since))
    return findings


def _subject(line: str) -> str:
    """The rollout, or the batch, that a line is about."""
    return line.rsplit(" ", 1)[-1]


async def _check_artifacts(artifacts: Artifacts, digests: Iterable[str]) -> list[Finding]:
    limit = asyncio.Semaphore(_PARALLEL)

    async def check(sha256: str) -> Finding | None:
        async with limit:
            state = await artifacts.verify(sha256)
        detail = {"missing": "it is not in the artifact store", "corrupt": "its bytes do not have its digest"}
        return None if state == "ok" else Finding(f"artifact_{state}", sha256, detail[state])

    results = await asyncio.gather(*(check(sha256) for sha256 in digests))
    return [finding for finding in results if finding is not None]
