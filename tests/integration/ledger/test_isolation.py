"""Snapshots: a writer under REPEATABLE READ would decide on the state before its lock."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from rollbook.ledger import Ledger
from rollbook.ledger.records import Evaluation
from rollbook.ledger.store import transaction
from tests.support.hostile import ending
from tests.support.ledger import ORIGIN, Kit, behind_the_guards, make_tasks, ref

RECONCILED = {
    "steps": "0",
    "evaluated": "false",
    "score": "NULL",
    "reward": "NULL",
    "infra": "'reconciled'",
    "action": "NULL",
    "eligible": "false",
    "termination": "'reconciled'",
    "reason": "'reconciled'",
    "closed_by": "'reconcile'",
    "policy": "'rollbook-reconciliation-v1'",
    "next": "'waiting'",
}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_an_old_snapshot_writes_nothing(kit: Kit, worker: Ledger, level: str) -> None:
    """The end of an attempt that does not see its evaluation."""
    key = (await kit.keys())[0]
    await kit.claim(key)
    async with worker.engine.connect() as conn:
        await conn.execution_options(isolation_level=level)
        async with conn.begin():
            await conn.execute(text("SELECT 1 FROM outcome LIMIT 1"))
            await kit.evaluate(key, 1, "run-1", 0.0)
            with pytest.raises(DBAPIError, match="written under READ COMMITTED"):
                await conn.execute(text(ending(key, **RECONCILED)[0]))
    await kit.clean()


@pytest.fixture
async def odd(ledger: Ledger, ledger_url: str) -> AsyncIterator[Ledger]:
    """The ledger in a database that is REPEATABLE READ unless requested otherwise."""
    said = "default_transaction_isolation"
    async with ledger.engine.connect() as conn:
        name = await conn.scalar(text("SELECT current_database()"))
        await conn.execute(text(f"ALTER DATABASE {name} SET {said} = 'repeatable read'"))
        await conn.commit()
        odd = Ledger.connect(ledger_url)
        yield odd
        await odd.aclose()
        await conn.execute(text(f"ALTER DATABASE {name} RESET {said}"))
        await conn.commit()


async def test_the_database_may_have_another_default(odd: Ledger) -> None:
    """The Janitor waits for the lock of the writer that commits the evaluation, and sees it then."""
    kit = Kit(odd, batch_id="odd", tasks=make_tasks(6))
    await odd.register_task_set("tasks", kit.tasks)
    key = (await kit.keys())[0]
    await kit.claim(key)
    context = await odd.attempt_context(ref(key, 1), "run-1")
    async with transaction(odd.engine) as conn:
        evaluation = Evaluation(completed=True, score=0.25, task_digest=context.task_digest, **ORIGIN)
        await odd.on(conn).commit_evaluation(ref(key, 1), "run-1", evaluation)
        janitor = asyncio.create_task(odd.close_reconciled(key, 1, "gone"))
        done, _ = await asyncio.wait({janitor}, timeout=0.3)
        assert not done, "it waits for the lock"
    assert await janitor == "waiting"
    assert (await kit.outcomes(key))[0]["score"] == 0.25
    await kit.clean()


async def test_a_group_in_two_batches_is_found(kit: Kit, ledger: Ledger) -> None:
    identity = {"sampling_event_id": kit.batch_id, "source_group_ids": {"task-001": "g"}}
    other = Kit(ledger, batch_id=f"{kit.batch_id}-b", tasks=kit.tasks)
    (mine,) = await kit.keys(tasks={"ids": ["task-001"]}, identity=identity)
    elsewhere = identity | {"sampling_event_id": other.batch_id}
    (theirs,) = await other.keys(tasks={"ids": ["task-001"]}, identity=elsewhere)
    change = "UPDATE rollout SET sampling_event_id = :event, rollout_index = 1 WHERE rollout_key = :key"
    assert await behind_the_guards(ledger, change, key=theirs, event=kit.batch_id)
    for batch, key in ((kit, mine), (other, theirs)):
        findings = (await ledger.audit(batch.batch_id)).findings
        assert key in {finding.subject for finding in findings if finding.kind == "shared_group"}
