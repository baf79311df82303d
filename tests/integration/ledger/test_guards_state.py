"""Raw SQL against what may change: states of rollouts, batches and leases, and the count of decisions."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from models.admission import AdmissionDecision
from models.episode import DesktopRef
from rollbook.errors import SandboxLost
from rollbook.ledger import Ledger
from tests.support.hostile import attack
from tests.support.ledger import Kit, make_tasks, ref

LEASE = {"deployment_id": "test", "provider": "null"}


@pytest.fixture
async def victim(kit: Kit, worker: Ledger) -> Kit:
    """A batch of the worker role."""
    return Kit(worker, batch_id=kit.batch_id, tasks=kit.tasks)


def state(key: str, new: str) -> str:
    return f"UPDATE rollout SET state = '{new}' WHERE rollout_key = '{key}'"


async def test_between_attempts_nothing_is_final_or_running(victim: Kit, ledger: Ledger) -> None:
    """The newest end says that another attempt is due: that one must be made first."""
    lost, again, stopped, *_ = await victim.keys()
    await victim.claim(lost)
    await victim.end(lost, 1, "run-1", infrastructure_failure_reason="sandbox_lost")
    await victim.run(again, score=0.0)
    await victim.ledger.request_rerun(victim.batch_id, [again], reason="r", requested_by="ann", supersede=True)
    await victim.claim(stopped)
    await victim.ledger.close_reconciled(stopped, 1, "gone")
    for attacker in (victim.ledger, ledger):
        for key in (lost, again, stopped):
            assert "another attempt is due" in await attack(attacker, state(key, "final"))
        for key in (again, stopped):
            assert "nothing is running" in await attack(attacker, state(key, "running"))
            assert "nothing is running" in await attack(
                attacker, state(key, "queued").replace("WHERE", ", queued_at = now() WHERE"), state(key, "running")
            )
    await victim.clean()
    for key in (lost, again, stopped):
        assert (await victim.run(key)).selected, "the due attempt is made all the same"
    await victim.clean()


async def test_decisions_are_counted_by_their_trigger_alone(victim: Kit, ledger: Ledger) -> None:
    key = (await victim.keys())[0]
    await victim.run(key)
    for change in ("decisions + 1", "0"):
        statement = f"UPDATE rollout SET decisions = {change} WHERE rollout_key = '{key}'"
        assert "permission denied" in await attack(victim.ledger, statement)
        assert "one by one" in await attack(ledger, statement)
    masked = AdmissionDecision(policy_id="manual", admitted=False, reason="popup")
    await victim.ledger.decide_admission(key, masked, decided_by="ann")
    assert (await victim.row(key))["decisions"] == 2
    await victim.clean()


async def test_a_batch_is_closed_when_nothing_is_open(victim: Kit, ledger: Ledger) -> None:
    keys = await victim.keys()
    close = f"UPDATE batch SET closed_at = now() WHERE batch_id = '{victim.batch_id}'"
    for key in keys:
        for attacker in (victim.ledger, ledger):
            assert "when every row is final" in await attack(attacker, close)
        assert not await victim.ledger.batch_is_whole(victim.batch_id)
        await victim.run(key, steps=1)
    assert await victim.ledger.batch_is_whole(victim.batch_id)
    await victim.ledger.request_rerun(victim.batch_id, keys[:1], reason="r", requested_by="ann", supersede=True)
    assert "when every row is final" in await attack(victim.ledger, close)


async def test_a_lease_is_one_desktops(victim: Kit, ledger: Ledger) -> None:
    key, label = (await victim.keys())[0], f"{victim.batch_id}-desktop"
    await victim.claim(key)
    await victim.ledger.sandbox_intent(ref(key, 1), "run-1", sandbox_key=label, lease_s=60, **LEASE)
    desktop = DesktopRef(
        provider="null", sandbox_id="a", sandbox_key=label, nonce="n", isolation="partial", view_url=""
    )
    await victim.ledger.sandbox_started(ref(key, 1), "run-1", desktop, lease_s=60)
    await victim.ledger.sandbox_started(ref(key, 1), "run-1", desktop, lease_s=60)
    change = f"UPDATE sandbox SET {{}} WHERE sandbox_key = '{label}'"
    for attacker in (victim.ledger, ledger):
        for said in ("nonce = 'm'", "isolation = 'full'", "sandbox_id = 'b'", "started_at = now()", "nonce = NULL"):
            assert "never becomes that of another desktop" in await attack(attacker, change.format(said))
        assert "was started already" in await attack(attacker, change.format("state = 'intended'"))
    for other in (desktop.model_copy(update={"nonce": "m"}), desktop.model_copy(update={"sandbox_id": "b"})):
        with pytest.raises(SandboxLost, match="of this desktop"):
            await victim.ledger.sandbox_started(ref(key, 1), "run-1", other, lease_s=60)
    assert await victim.ledger.sandbox_stopped(label, "the end")
    revive = "state = 'running', stopped_at = NULL"
    for attacker in (victim.ledger, ledger):
        for said in (revive, "lease_until = now()", "stop_reason = 'another'"):
            assert "it was stopped, that is its end" in await attack(attacker, change.format(said))
    assert not await victim.ledger.sandbox_stopped(label, "again"), "a repeat is no attack"


PLAN = """
    INSERT INTO rollout (rollout_key, batch_id, domain, task_id, sample, task_digest, identity_source,
        sampling_event_id, source_group_id, group_id, rollout_index, plan_order)
    SELECT batch_id || '/' || domain || '/' || task_id || '/5', batch_id, domain, task_id, 5, task_digest, 'caller',
        '{event}', 'g', 'group-x', {index}, 90 FROM rollout WHERE batch_id = '{batch}' AND task_id = '{task}'
"""


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("a", "a")])
async def test_a_group_of_an_event_is_one_batchs_and_one_tasks_also_in_a_race(
    ledger: Ledger, kit: Kit, first: str, second: str
) -> None:
    """Two transactions plan the same group at once: the second waits for the first and is refused."""
    for name in {first, second}:
        await Kit(ledger, batch_id=f"{kit.batch_id}-{name}", tasks=make_tasks(6)).register()
    plans = [
        PLAN.format(event=kit.batch_id, batch=f"{kit.batch_id}-{name}", task=f"task-00{number}", index=number)
        for number, name in enumerate((first, second))
    ]
    async with ledger.engine.connect() as one, ledger.engine.connect() as two:
        before = await one.begin()
        await one.execute(text(plans[0]))
        waiting = asyncio.create_task(two.execute(text(plans[1])))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done, "the second waits"
        await before.commit()
        with pytest.raises(DBAPIError, match="belongs to another batch or task"):
            await waiting


MEMBER = """
    INSERT INTO task_set_member (set_digest, task_id, domain, task_digest)
    SELECT '{}', '{}', 'os', task_digest FROM task_set_member LIMIT 1
"""


async def test_a_registered_set_gets_no_further_member(victim: Kit, ledger: Ledger) -> None:
    registered = await ledger.find_task_set("tasks")
    for attacker in (victim.ledger, ledger):
        ghost = MEMBER.format(registered.set_digest, "ghost")
        assert "it is registered, no member is added" in await attack(attacker, ghost)
        short = f"INSERT INTO task_set (name, set_digest, task_count) SELECT 'short', '{'0' * 64}', 2"
        assert "1 members are recorded" in await attack(attacker, MEMBER.format("0" * 64, "only"), short)
    again = await victim.ledger.register_task_set("another-name", victim.tasks)
    assert (again.set_digest, again.tasks) == (registered.set_digest, registered.tasks)
    await victim.keys()
    await victim.clean()


@pytest.mark.parametrize("change", ["max_attempts = 1000", "launch_id = 'mine'"])
async def test_a_batch_is_controlled_by_its_newest_launch(victim: Kit, ledger: Ledger, change: str) -> None:
    await victim.keys()
    for attacker in (victim.ledger, ledger):
        statement = f"UPDATE batch SET {change} WHERE batch_id = '{victim.batch_id}'"
        assert "those of its newest registration" in await attack(attacker, statement)
    await victim.register("l-2", max_attempts=5)
    await victim.clean()


async def test_only_the_trigger_calls_a_guard_with_the_owners_rights(ledger: Ledger) -> None:
    async with ledger.engine.connect() as connection:
        query = text("SELECT has_function_privilege('rollbook_worker', 'guard_admission()', 'EXECUTE')")
        assert await connection.scalar(query) is False
