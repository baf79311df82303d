"""Tasks that cannot be run or scored here: refused by default, or left out and recorded with the reason."""

import pytest
from sqlalchemy import text

from models.task import read_task
from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger
from tests.support.hostile import attack
from tests.support.ledger import Kit, rows

LACKS = {"task-000": "the image lacks chrome (related_apps)"}
EXCLUDE = {"ids": ["task-000", "task-001"], "on_unrunnable": "exclude"}


async def test_the_batch_is_refused_with_tasks_reasons_and_the_fix(kit: Kit) -> None:
    with pytest.raises(InvalidInput) as error:
        await kit.register(unrunnable=LACKS, tasks={"ids": ["task-000", "task-001"]})
    for part in ("1 of the 2 chosen", "/task-000: the image lacks chrome", 'on_unrunnable to "exclude"'):
        assert part in str(error.value)
    with pytest.raises(InvalidInput, match="1 of the 1 chosen"):
        await kit.register(unrunnable=LACKS, tasks=EXCLUDE | {"ids": ["task-000"]})
    await kit.register(unrunnable=LACKS, tasks={"ids": ["task-001"]})


async def test_excluded_tasks_are_counted_apart(kit: Kit) -> None:
    registered = await kit.register(unrunnable=LACKS, tasks=EXCLUDE, samples=2)
    assert (registered.planned, registered.added) == (2, 2)
    again = await kit.register(unrunnable=LACKS, tasks=EXCLUDE, samples=2)
    assert (again.planned, again.added) == (2, 0)
    query = "SELECT rollout_key FROM rollout WHERE batch_id = :b"
    keys = [row["rollout_key"] for row in await rows(kit.ledger, query, b=kit.batch_id)]
    assert all("/task-001/" in key for key in keys)
    query = "SELECT domain, planned, waiting, excluded FROM rollcall WHERE batch_id = :b AND domain IN ('(all)', :d)"
    domain = next(task.domain for task in kit.tasks if task.task_id == "task-000")
    counted = {row["domain"]: row for row in await rows(kit.ledger, query, b=kit.batch_id, d=domain)}
    assert (counted["(all)"]["planned"], counted["(all)"]["waiting"], counted["(all)"]["excluded"]) == (2, 2, 1)
    assert (counted[domain]["planned"], counted[domain]["excluded"]) == (0, 1)
    query = "SELECT domain, task_id, reason FROM excluded_tasks WHERE batch_id = :b"
    assert [tuple(row.values()) for row in await rows(kit.ledger, query, b=kit.batch_id)] == [
        (domain, "task-000", LACKS["task-000"])
    ]
    report = await kit.clean()
    assert (report.planned, report.excluded) == (2, 1)


async def test_what_was_excluded_stays_on_record(kit: Kit) -> None:
    await kit.register(unrunnable=LACKS, tasks=EXCLUDE)
    for change in ("DELETE FROM excluded_task", "UPDATE excluded_task SET reason = 'none'"):
        assert "excluded_task" in await attack(kit.ledger, change)


async def test_the_audit_finds_an_exclusion_that_no_spec_asks_for(kit: Kit) -> None:
    await kit.register(tasks={"ids": ["task-001"]})
    statement = """INSERT INTO excluded_task (batch_id, task_id, domain, task_digest, launch_id, reason, row_digest)
        SELECT batch_id, task_id, domain, task_digest, registration.launch_id, 'none', '' FROM rollout
        JOIN registration USING (batch_id) WHERE batch_id = :b"""
    async with kit.ledger.engine.begin() as conn:
        await conn.execute(text(statement), {"b": kit.batch_id})
    kinds = {finding.kind for finding in (await kit.ledger.audit(kit.batch_id)).findings}
    assert {"excluded_task", "plan"} <= kinds


async def test_the_set_knows_which_tasks_the_evaluator_cannot_score(ledger: Ledger) -> None:
    document = {
        "id": "odd",
        "instruction": "x",
        "evaluator": {"func": "compare_image_text", "result": {"type": "rule"}},
    }
    done = await ledger.register_task_set("odd", [read_task("os", document)])
    (task,) = await ledger.tasks_of(done.set_digest)
    assert task.unscorable is not None
    assert "compare_image_text needs easyocr" in task.unscorable
