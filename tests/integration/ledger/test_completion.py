"""The digest of a finished batch: a rewritten row is found though its own digest fits; later events are explained."""

import hashlib
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from models.admission import AdmissionDecision
from rollbook.artifacts import ArtifactStore
from rollbook.ledger import AuditReport, Ledger
from tests.support.ledger import Kit, behind_the_guards, rows

IN_BATCH = "rollout_key IN (SELECT rollout_key FROM rollout WHERE batch_id = '{batch}')"
FORGE = (
    f"UPDATE evaluation SET score = 1 WHERE {IN_BATCH}",
    f"UPDATE outcome SET score = 1, reward = 1 WHERE {IN_BATCH}",
    f"UPDATE evaluation AS r SET row_digest = seal(r) WHERE {IN_BATCH}",
    f"UPDATE outcome AS r SET row_digest = seal(r) WHERE {IN_BATCH}",
)
"""With triggers off, these turn every score to 1 so that each row still has its digest."""


@pytest.fixture(scope="module")
async def store(scratch: Path) -> ArtifactStore:
    return ArtifactStore.open((scratch / f"records-{uuid.uuid4().hex[:8]}").as_uri())


@pytest.fixture
async def batch(kit: Kit, store: ArtifactStore) -> Kit:
    """Six rollouts with score 0, complete."""
    for key in await kit.keys():
        await kit.run(key, score=0.0)
    assert await kit.ledger.batch_is_whole(kit.batch_id, store.put)
    return kit


async def audit(kit: Kit, store: ArtifactStore, expect: str | None = None) -> AuditReport:
    """The audit, but for the evidence: this batch names artifacts that were never put."""
    report = await kit.ledger.audit(kit.batch_id, store, expect)
    findings = [finding for finding in report.findings if finding.kind != "artifact_missing"]
    return replace(report, findings=findings, ok=not findings)


async def digest(kit: Kit) -> str:
    return (await kit.ledger.completions(kit.batch_id))[-1].digest


async def test_anybody_can_recompute_the_digest(batch: Kit, store: ArtifactStore) -> None:
    lines = await rows(
        batch.ledger, "SELECT line FROM batch_record WHERE batch_id = :batch ORDER BY position", batch=batch.batch_id
    )
    record = "".join(f"{row['line']}\n" for row in lines).encode()
    assert hashlib.sha256(record).hexdigest() == await digest(batch)
    assert await store.get(await digest(batch)) == record
    kinds = [line.split(b" ")[0] for line in record.splitlines()]
    assert kinds[0] == b"batch"
    assert kinds.count(b"rollout") == kinds.count(b"evaluation") == kinds.count(b"outcome") == 6
    assert kinds.count(b"admission") == 6
    report = await audit(batch, store, await digest(batch))
    assert (report.ok, report.notices) == (True, [])
    assert report.completions == [report.digest]


@pytest.mark.parametrize("role", ["rollbook_worker", "rollbook_operator", "rollbook_reader"])
async def test_no_role_may_forge(batch: Kit, store: ArtifactStore, ledger_url: str, role: str) -> None:
    member = Ledger.connect(ledger_url, role=role)
    complete = f"UPDATE completion SET digest = repeat('0', 64) WHERE batch_id = '{batch.batch_id}'"
    for statement in ("SET session_replication_role = replica", *FORGE, complete):
        with pytest.raises(DBAPIError, match="permission denied"):
            async with member.engine.begin() as connection:
                await connection.execute(text(statement.format(batch=batch.batch_id)))
    await member.aclose()
    assert (await audit(batch, store)).ok


async def forged(batch: Kit) -> None:
    for statement in FORGE:
        assert await behind_the_guards(batch.ledger, statement.format(batch=batch.batch_id)) == 6


async def test_a_superusers_forgery_is_found(batch: Kit, store: ArtifactStore) -> None:
    before = await digest(batch)
    await forged(batch)
    assert (await batch.ledger.audit(batch.batch_id)).ok, "each row fits its digest: the ledger alone shows nothing"
    report = await audit(batch, store)
    assert not report.ok
    assert {finding.kind for finding in report.findings} == {"completion_changed"}
    assert {finding.subject for finding in report.findings} == set(await batch.planned())
    assert report.digest != before


async def test_a_forged_completion_is_found(batch: Kit, store: ArtifactStore) -> None:
    """The artifact store has no record with the digest of the changed rows; it still has the one of before."""
    before = await digest(batch)
    await forged(batch)
    report = await audit(batch, store)
    for statement in (
        f"UPDATE completion SET digest = '{report.digest}' WHERE batch_id = :batch",
        "UPDATE completion AS r SET row_digest = seal(r) WHERE batch_id = :batch",
    ):
        assert await behind_the_guards(batch.ledger, statement, batch=batch.batch_id) == 1
    assert {finding.kind for finding in (await audit(batch, store)).findings} == {"completion_record"}
    kinds = {finding.kind for finding in (await audit(batch, store, before)).findings}
    assert kinds == {"completion_record", "completion_changed", "expected_digest"}


async def test_a_removed_completion_is_found(batch: Kit, store: ArtifactStore) -> None:
    await behind_the_guards(batch.ledger, "DELETE FROM completion WHERE batch_id = :batch", batch=batch.batch_id)
    assert {finding.kind for finding in (await audit(batch, store)).findings} == {"completion"}


async def test_what_comes_later_is_explained(batch: Kit, store: ArtifactStore) -> None:
    first, keys = await digest(batch), await batch.planned()
    decision = AdmissionDecision(policy_id="manual", admitted=False, reason="popup")
    await batch.ledger.decide_admission(keys[0], decision, decided_by="ann")
    report = await audit(batch, store, first)
    assert report.ok
    (notice,) = [notice for notice in report.notices if notice.kind == "appended"]
    assert notice.detail.startswith("since completion 1 (")
    assert notice.detail.endswith("): 1 admission")

    await batch.ledger.request_rerun(batch.batch_id, keys[:1], reason="popup", requested_by="ann", supersede=True)
    await batch.run(keys[0], "run-2", score=0.5)
    assert await batch.ledger.batch_is_whole(batch.batch_id, store.put)
    second = await digest(batch)
    report = await audit(batch, store, first)
    assert report.ok, report.findings
    assert report.completions == [first, second]
    assert report.digest == second
    assert not [notice for notice in report.notices if notice.kind == "appended"]


async def test_a_digest_of_nothing_is_refused(batch: Kit, store: ArtifactStore) -> None:
    report = await audit(batch, store, "0" * 64)
    assert {finding.kind for finding in report.findings} == {"completion_record", "expected_digest"}


async def test_a_store_that_is_away_leaves_the_batch_open(kit: Kit) -> None:
    """No completion without its record: the pump tries again."""

    async def away(record: bytes, media_type: str) -> None:
        raise OSError("the store is away")

    for key in await kit.keys():
        await kit.run(key)
    with pytest.raises(OSError, match="away"):
        await kit.ledger.batch_is_whole(kit.batch_id, away)  # type: ignore[arg-type]
    assert await kit.ledger.completions(kit.batch_id) == []
