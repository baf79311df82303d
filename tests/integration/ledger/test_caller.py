"""A trainer's identity in the ledger: complete, unique across batches, kept on relaunch, by upstream's recipe."""

import asyncio
import uuid
from typing import Any

import pytest
from sqlalchemy import text

from models.identity import derived_group_id, scoped_group_id, scoped_rollout_id
from rollbook.errors import InvalidInput, LedgerConflict, SpecConflict
from rollbook.ledger import Ledger
from rollbook.ledger.store import transaction
from tests.support.ledger import Kit, behind_the_guards, rows

IDS = {"ids": ["task-000", "task-001"]}
GROUPS = {"task-000": "g-0", "task-001": "g-1"}


@pytest.fixture
async def event() -> str:
    return f"sampling-train-step-00000001-{uuid.uuid4().hex}"


def by(event: str, **groups: str) -> dict[str, Any]:
    """A spec's identity and selection."""
    chosen = {name.replace("_", "-"): group for name, group in groups.items()} or GROUPS
    return {
        "tasks": {"ids": list(chosen)},
        "identity": {"sampling_event_id": event, "source_group_ids": chosen},
    }


async def test_rows_and_attempts_carry_the_scoped_ids(kit: Kit, event: str) -> None:
    keys = await kit.keys(samples=2, **by(event))
    planned = [await kit.row(key) for key in keys]
    assert {row["identity_source"] for row in planned} == {"caller"}
    for row in planned:
        source = GROUPS[row["task_id"]]
        assert (row["sampling_event_id"], row["source_group_id"]) == (event, source)
        assert (row["group_id"], row["rollout_index"]) == (scoped_group_id(event, source), row["sample"])
    key = next(row["rollout_key"] for row in planned if row["task_id"] == "task-001" and row["sample"] == 1)
    first = await kit.claim(key)
    assert first.trajectory_rollout_id == scoped_rollout_id(event, "g-1", "task-001", 1, 0)
    await kit.end(key, 1, "run-1", infrastructure_failure_reason="sandbox_lost")
    second = await kit.claim(key, n=2)
    assert second.trajectory_rollout_id == scoped_rollout_id(event, "g-1", "task-001", 1, 1)
    assert first.execution_id != second.execution_id
    await kit.clean()


async def test_the_same_decision_again_is_a_relaunch(kit: Kit, event: str) -> None:
    await kit.register(samples=2, **by(event))
    again = await kit.register(samples=2, **by(event))
    assert (again.planned, again.added) == (4, 0)
    more = await kit.register(samples=3, extend=True, **by(event))
    assert (more.planned, more.added) == (6, 2)
    wider = await kit.register(samples=3, extend=True, **by(event, task_000="g-0", task_001="g-1", task_002="g-2"))
    assert (wider.planned, wider.added) == (9, 3)
    await kit.clean()


async def test_a_relaunch_never_changes_the_identity(kit: Kit, event: str) -> None:
    await kit.register(**by(event))
    with pytest.raises(SpecConflict, match=r"identity.sampling_event_id: .* -> 'another'"):
        await kit.register(**by("another"))
    with pytest.raises(SpecConflict, match=r"identity.sampling_event_id: .* -> None"):
        await kit.register(tasks=IDS)
    with pytest.raises(SpecConflict, match=r"the group of task task-001: 'g-1' -> 'x'"):
        await kit.register(**by(event, task_000="g-0", task_001="x"))


async def test_a_derived_batch_does_not_become_a_trainers(kit: Kit, event: str) -> None:
    await kit.register(tasks=IDS)
    with pytest.raises(SpecConflict, match=r"identity.sampling_event_id: None -> "):
        await kit.register(**by(event))
    assert (await kit.row((await kit.planned())[0]))["group_id"] == derived_group_id("task-000")


async def test_a_group_belongs_to_one_batch_of_the_whole_ledger(kit: Kit, ledger: Ledger, event: str) -> None:
    await kit.register(**by(event))
    other = Kit(ledger, batch_id=f"{kit.batch_id}-other")
    with pytest.raises(SpecConflict, match=f"group 'g-0' of sampling event '{event}' belongs to batch {kit.batch_id} "):
        await other.register(**by(event))
    with pytest.raises(SpecConflict, match="belongs to batch"):  # not for another task either: a group is one task's
        await other.register(**by(event, task_002="g-1"))
    assert await other.planned() == []
    with pytest.raises(InvalidInput, match="no batch"):
        await ledger.audit(other.batch_id)
    done = await other.register(**by(event, task_000="h-0"))  # another group of the same event is free
    assert done.added == 1


async def test_two_batches_that_race_for_a_group(kit: Kit, ledger: Ledger, event: str) -> None:
    kits = [Kit(ledger, batch_id=f"{kit.batch_id}-{number}") for number in range(8)]
    done = await asyncio.gather(*(one.register(**by(event)) for one in kits), return_exceptions=True)
    assert sum(not isinstance(one, BaseException) for one in done) == 1
    assert sum(isinstance(one, SpecConflict) for one in done) == 7
    (found,) = await rows(
        ledger, "SELECT count(*), count(DISTINCT batch_id) AS n FROM rollout WHERE sampling_event_id = :e", e=event
    )
    assert (found["count"], found["n"]) == (2, 1)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ("identity_source = 'derived'", "rollout_identity_complete"),
        ("sampling_event_id = NULL", "rollout_identity_complete"),
        ("source_group_id = NULL", "rollout_identity_complete"),
        ("sampling_event_id = ' '", "rollout_caller_ids"),
        ("source_group_id = ''", "rollout_caller_ids"),
    ],
)
async def test_the_database_holds_it_too(kit: Kit, event: str, change: str, refused: str) -> None:
    """Constraints count even behind the guards."""
    key = (await kit.keys(**by(event)))[0]
    with pytest.raises(Exception, match=refused):
        await behind_the_guards(kit.ledger, f"UPDATE rollout SET {change} WHERE rollout_key = :key", key=key)


async def test_raw_sql_cannot_take_a_group(kit: Kit, ledger: Ledger, event: str) -> None:
    await kit.register(**by(event))
    other = Kit(ledger, batch_id=f"{kit.batch_id}-raw")
    await other.register(tasks={"ids": ["task-002"]})
    steal = """
        INSERT INTO rollout (rollout_key, batch_id, domain, task_id, sample, task_digest, identity_source,
            sampling_event_id, source_group_id, group_id, rollout_index, plan_order)
        SELECT batch_id || '/os/task-002/9', batch_id, 'os', 'task-002', 9, task_digest, 'caller', :event, 'g-0', 'x',
            9, 9 FROM rollout WHERE batch_id = :b
    """
    with pytest.raises(LedgerConflict, match="belongs to another batch or task"):
        async with transaction(ledger.engine) as conn:
            await conn.execute(text(steal), {"event": event, "b": other.batch_id})


@pytest.mark.parametrize("given", [True, False], ids=["caller", "derived"])
@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ("UPDATE rollout SET group_id = 'group-0' WHERE rollout_key = :key", "the group id does not follow"),
        (
            "UPDATE attempt SET trajectory_rollout_id = 'rollout-0' WHERE rollout_key = :key",
            "attempt 1: the trajectory id does not follow",
        ),
    ],
)
async def test_the_audit_works_the_recipe_again(kit: Kit, event: str, given: bool, change: str, detail: str) -> None:
    """Also for ids that need escapes in JSON."""
    identity = {"sampling_event_id": event, "source_group_ids": {"task-000": 'g "0" \\ ä/ü', "task-001": "g-1"}}
    keys = await kit.keys(tasks=IDS, **({"identity": identity} if given else {}))
    for key in keys:
        await kit.claim(key)
    await kit.clean()
    await behind_the_guards(kit.ledger, change, key=keys[0])
    found = [finding for finding in (await kit.ledger.audit(kit.batch_id)).findings if finding.kind == "identity"]
    assert any(finding.subject == keys[0] and detail in finding.detail for finding in found)
    assert {finding.subject for finding in found} == {keys[0]}
