"""The audit finds any single row that was changed or lost behind the guards, and any artifact that is not there."""

import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Column, Double, Integer, Table, Uuid
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.exc import IntegrityError, ProgrammingError

from models.admission import AdmissionDecision
from models.batch import RegisterBatch
from models.contract import Resolved
from models.episode import Observation
from rollbook.artifacts import ArtifactStore
from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger, ModelCall, tables
from tests.support.ledger import LOG, NAMESPACE, Kit, behind_the_guards, make_tasks, ref, rows, spec_of

COSMETIC = {
    # control and times that prove nothing: they may change at any time, by every role that may work on the batch
    "batch": {
        "paused",
        "frozen",
        "stopping",
        "cancelling",
        "control_reason",
        "concurrency",
        "max_attempts",
        "created_at",
        "closed_at",
    },
    "rollout": {"queued_at"},
    "task": {"recorded_at", "unscorable"},  # the reason that a batch went by is in its excluded_task
    "policy_script": {"recorded_at"},
}
PROVEN: dict[str, str] = {
    "batch": "batch_id = :batch",
    "registration": "batch_id = :batch",
    "completion": "batch_id = :batch",
    "rollout": "batch_id = :batch",
    "task": "task_digest IN (SELECT task_digest FROM rollout WHERE batch_id = :batch)",
    "task_set_member": "task_id = 'task-000' AND set_digest IN (SELECT set_digest FROM registration"
    " WHERE batch_id = :batch)",
    "policy_script": "script_digest = (SELECT contract -> 'policy' ->> 'script_digest' FROM batch"
    " WHERE batch_id = :batch)",
    "artifact": "sha256 IN (SELECT screenshot_sha256 FROM turn WHERE split_part(rollout_key, '/', 1) = :batch)",
} | {
    name: "split_part(rollout_key, '/', 1) = :batch"
    for name in ("rerun_request", "attempt", "evaluation", "outcome", "admission", "turn", "model_call")
}
CASES = [
    pytest.param(name, column.name, id=f"{name}.{column.name}")
    for name in PROVEN
    for column in tables.metadata.tables[name].c
    if column.name not in COSMETIC.get(name, set()) and column.computed is None
]


@pytest.fixture(scope="module")
async def store(scratch: Path) -> ArtifactStore:
    store = ArtifactStore.open((scratch / f"artifacts-{uuid.uuid4().hex[:8]}").as_uri())
    await store.put(LOG, "text/plain")
    return store


@pytest.fixture(scope="module")
async def batch(ledger: Ledger, store: ArtifactStore) -> AsyncIterator[Kit]:
    """A whole batch with everything in it: failures, retries, a superseded result, a decision by hand, evidence."""
    kit = Kit(ledger, batch_id=f"b-{uuid.uuid4().hex[:10]}", tasks=make_tasks(6))
    await ledger.register_task_set("tasks", kit.tasks)
    script = await ledger.register_script(
        "script", {"tasks": {}, "default": {"steps": [{"actions": ["WAIT"]}]}, "note": kit.batch_id}
    )
    for launch in ("l-1", "l-2"):
        request = RegisterBatch(
            batch_id=kit.batch_id,
            namespace=NAMESPACE,
            spec=spec_of(policy={"kind": "scripted", "script": "script"}),
            launch_id=launch,
        )
        await ledger.register_batch(request, deployment_id="test", resolved=Resolved(script_digest=script))
    keys = await kit.planned()
    for number, key in enumerate(keys):
        await episode(kit, store, key, "run-1", 1, 0.25 * (number % 5))
    await ledger.request_rerun(kit.batch_id, keys[:2], reason="wrong image", requested_by="ann", supersede=True)
    await kit.claim(keys[0], "lost")
    await kit.claim(keys[0], "run-2")
    await kit.end(keys[0], 3, "run-2", infrastructure_failure_reason="sandbox_lost")
    await episode(kit, store, keys[0], "run-2", 2, 1.0)
    await kit.claim(keys[1], "run-2")
    await kit.evaluate(keys[1], 2, "run-2", None)
    await kit.end(keys[1], 2, "run-2", infrastructure_failure_reason="evaluator_error", guest_failed=False)
    await episode(kit, store, keys[1], "run-2", 2, 1.0)
    decision = AdmissionDecision(policy_id="manual", admitted=False, reason="popup")
    await ledger.decide_admission(keys[2], decision, decided_by="ann", evidence={"step": 1})
    assert await ledger.batch_is_whole(kit.batch_id, store.put)
    report = await ledger.audit(kit.batch_id, store)
    assert report.ok, report.findings
    assert report.artifacts_checked > 20
    yield kit
    report = await ledger.audit(kit.batch_id, store)
    assert report.ok, report.findings


async def episode(kit: Kit, store: ArtifactStore, key: str, run_id: str, n: int, score: float) -> None:
    claim = await kit.claim(key, run_id, n)
    attempt = ref(key, claim.attempt_index)
    for step in range(3):
        said = await store.put(f"{key} said {claim.attempt_index} {step}".encode(), "application/json")
        seen = await store.put(f"{key} saw {claim.attempt_index} {step}".encode(), "image/png")
        if step:
            end: Any = "DONE" if step == 2 else None
            call = ModelCall(
                step=step, policy_kind="scripted", actions=["WAIT"], terminal_action=end, prompt=said, response=said
            )
            await kit.ledger.commit_model_call(attempt, run_id, call)
        done = [{"status": "in_doubt"}] if step == 2 else []
        await kit.ledger.commit_turn(
            attempt, run_id, step=step, observation=Observation(screenshot=seen, terminal=said), actions=done,
            started_at=0.0,
        )  # fmt: skip
    await kit.evaluate(key, claim.attempt_index, run_id, score)
    await kit.end(key, claim.attempt_index, run_id, steps=2)


def other(column: Column[Any], value: Any) -> str:
    """SQL for another value of the column's type."""
    name, kind = column.name, column.type
    if isinstance(kind, Boolean):
        return f"NOT {name}"
    if isinstance(kind, TIMESTAMP):
        return f"{name} + interval '1 microsecond'"
    if isinstance(kind, Double):
        return "0.123" if value is None else f"CASE WHEN {name} = 0.5 THEN 0.6 ELSE 0.5 END"
    if isinstance(kind, Integer):
        return "1" if value is None else f"{name} + 1"
    if isinstance(kind, Uuid):
        return "gen_random_uuid()"
    if isinstance(kind, JSON | JSONB):
        return "'[\"other\"]'" if isinstance(value, list) else "'{\"other\": 1}'"
    return "'other'" if value is None else f"{name} || 'x'"


async def pick(ledger: Ledger, table: Table, batch_id: str) -> Any:
    """The last row of a table that belongs to the batch."""
    where = PROVEN[table.name]
    order = ", ".join(column.name for column in table.primary_key)
    found = await rows(
        ledger, f"SELECT ctid::text AS place, * FROM {table.name} WHERE {where} ORDER BY {order}", batch=batch_id
    )
    assert found, table.name
    return found[-1]


@pytest.mark.parametrize(("name", "column"), CASES)
async def test_any_changed_column_is_found(batch: Kit, name: str, column: str) -> None:
    ledger, table = batch.ledger, tables.metadata.tables[name]
    before = await pick(ledger, table, batch.batch_id)
    change = other(table.c[column], before[column])
    await behind_the_guards(ledger, f"CREATE TABLE kept AS SELECT * FROM {name}")
    try:
        try:
            statement = f"UPDATE {name} SET {column} = {change} WHERE ctid = CAST(:place AS tid)"
            assert await behind_the_guards(ledger, statement, place=before["place"]) == 1
        except (IntegrityError, ProgrammingError):
            return  # a named check or an identity column refuses it, even without triggers
        if name == "batch" and column == "batch_id":
            with pytest.raises(InvalidInput):
                await ledger.audit(batch.batch_id)
        else:
            report = await ledger.audit(batch.batch_id)
            assert not report.ok
            assert report.findings
    finally:
        await restore(ledger, table)


@pytest.mark.parametrize("name", [name for name in PROVEN if name != "batch"])
async def test_any_lost_row_is_found(batch: Kit, name: str) -> None:
    ledger, table = batch.ledger, tables.metadata.tables[name]
    lost = await rows(ledger, f"SELECT ctid::text AS place FROM {name} WHERE {PROVEN[name]}", batch=batch.batch_id)
    for row in (lost[0], lost[len(lost) // 2], lost[-1]):
        await behind_the_guards(ledger, f"CREATE TABLE kept AS SELECT * FROM {name}")
        try:
            statement = f"DELETE FROM {name} WHERE ctid = CAST(:place AS tid)"
            if await behind_the_guards(ledger, statement, place=row["place"]):
                assert not (await ledger.audit(batch.batch_id)).ok
        finally:
            await restore(ledger, table)


async def restore(ledger: Ledger, table: Table) -> None:
    """Put the rows back as they were, times and digests included."""
    columns = ", ".join(column.name for column in table.c if column.computed is None)
    await behind_the_guards(ledger, f"DELETE FROM {table.name}")
    await behind_the_guards(
        ledger, f"INSERT INTO {table.name} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM kept"
    )
    await behind_the_guards(ledger, "DROP TABLE kept")


@pytest.fixture
def artifact_files(batch: Kit, scratch: Path) -> list[Path]:
    """The files of the artifact store."""
    files = [path for path in scratch.glob("artifacts-*/*/*") if path.is_file()]
    return [path for path in files if not path.read_bytes().startswith(b"batch ")]  # the record of the completion


async def test_a_lost_artifact_is_found(batch: Kit, store: ArtifactStore, artifact_files: list[Path]) -> None:
    files = artifact_files
    path = files[len(files) // 2]
    kept = path.read_bytes()
    path.unlink()
    report = await batch.ledger.audit(batch.batch_id, store)
    assert [(finding.kind, finding.subject) for finding in report.findings] == [("artifact_missing", path.name)]
    path.write_bytes(kept + b"!")
    report = await batch.ledger.audit(batch.batch_id, store)
    assert [(finding.kind, finding.subject) for finding in report.findings] == [("artifact_corrupt", path.name)]
    path.write_bytes(kept)


async def test_rows_that_are_not_final_are_named(kit: Kit) -> None:
    keys = await kit.keys()
    for key in keys[1:]:
        await kit.run(key)
    report = await kit.ledger.audit(kit.batch_id)
    assert not report.ok
    assert [(finding.kind, finding.subject, finding.detail) for finding in report.findings] == [
        ("not_final", keys[0], "the row is waiting")
    ]
    await kit.run(keys[0])
    assert (await kit.ledger.audit(kit.batch_id)).ok


async def test_findings_say_what_is_wrong(batch: Kit) -> None:
    """The texts people read, for a prettified score."""
    ledger, table = batch.ledger, tables.outcome
    key = (await batch.planned())[3]
    await behind_the_guards(ledger, "CREATE TABLE kept AS SELECT * FROM outcome")
    try:
        await behind_the_guards(ledger, "UPDATE outcome SET score = 1, reward = 1 WHERE rollout_key = :key", key=key)
        found = {finding.kind: finding for finding in (await ledger.audit(batch.batch_id)).findings}
        assert set(found) == {"score", "row_digest"}
        assert found["score"].subject == key
        assert re.search(r"attempt 1: score 1, the evaluation says 0\.75", found["score"].detail)
    finally:
        await restore(ledger, table)


async def test_notices_do_not_fail_an_audit(batch: Kit) -> None:
    report = await batch.ledger.audit(batch.batch_id)
    kinds = {notice.kind for notice in report.notices}
    assert kinds == {"superseded", "redecided", "in_doubt", "further_attempt"}


async def test_an_unknown_batch_is_named(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="no batch 'nobody'"):
        await ledger.audit("nobody")
