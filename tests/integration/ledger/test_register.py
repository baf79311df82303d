"""Registration: every rollout is a row before it runs; relaunches add nothing that was not asked for."""

import asyncio
import uuid
from typing import Any

import pytest

from models.batch import Control, RegisterBatch
from models.contract import Resolved
from rollbook.errors import InvalidInput, SpecConflict
from tests.support.ledger import NAMESPACE, Kit, make_task, make_tasks, rows, spec_of


async def test_every_rollout_is_planned_once_in_osworlds_order(kit: Kit) -> None:
    done = await kit.register(samples=2)
    assert (done.planned, done.added, done.final) == (12, 12, 0)
    keys = await kit.planned()
    assert len(set(keys)) == 12
    assert [key.split("/")[1] for key in keys[:6]] == ["chrome", "chrome", "os", "os", "zebra", "zebra"]
    assert [key.split("/")[3] for key in keys] == ["0"] * 6 + ["1"] * 6
    assert (await kit.clean()).planned == 12


async def test_relaunch_of_the_same_spec_adds_nothing(kit: Kit) -> None:
    await kit.register("l-1")
    again = await kit.register("l-1")
    relaunch = await kit.register("l-2", concurrency=9, note="faster", max_attempts=5)
    assert (again.added, relaunch.added, relaunch.planned) == (0, 0, 6)
    control = await kit.ledger.batch_control(kit.batch_id)
    assert (control.concurrency, control.max_attempts, control.launch_id) == (9, 5, "l-2")
    launches = await rows(kit.ledger, "SELECT * FROM registration WHERE batch_id = :b ORDER BY 3", b=kit.batch_id)
    assert [(launch["launch_id"], launch["added"]) for launch in launches] == [("l-1", 6), ("l-2", 0)]
    await kit.clean()


async def test_racing_registrations_plan_once(kit: Kit) -> None:
    found = await asyncio.gather(*(kit.register(f"l-{number % 3}", samples=3) for number in range(9)))
    assert sum(result.added for result in found) == 18
    assert {result.planned for result in found} == {18}
    await kit.clean()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limits": {"max_steps": 99}}, "limits.max_steps: 15 -> 99"),
        ({"reward_mode": "raw"}, "reward_mode: 'binary' -> 'raw'"),
        ({"policy": {"kind": "noop", "waits": 3}}, "policy.waits: 0 -> 3"),
        ({"seed": 4}, "seed: 0 -> 4"),
    ],
)
async def test_another_contract_is_refused_with_the_difference(kit: Kit, changes: dict[str, Any], message: str) -> None:
    await kit.register()
    with pytest.raises(SpecConflict) as error:
        await kit.register(**changes)
    assert message in str(error.value)


async def test_another_evaluator_is_another_contract(kit: Kit) -> None:
    await kit.register()
    request = RegisterBatch(batch_id=kit.batch_id, namespace=NAMESPACE, spec=spec_of(), launch_id="l-2")
    with pytest.raises(SpecConflict, match=r"resolved.evaluator_revision: '1.0.2' -> '2'"):
        await kit.ledger.register_batch(
            request,
            deployment_id="test",
            resolved=Resolved(desktop_image="image@1", evaluator_revision="2"),
        )
    with pytest.raises(SpecConflict, match="deployment"):
        await kit.ledger.register_batch(
            request,
            deployment_id="other",
            resolved=Resolved(desktop_image="image@1", evaluator_revision="1.0.2"),
        )


async def test_extend_adds_samples_and_tasks_and_keeps_what_is_there(kit: Kit) -> None:
    keys = await kit.keys(tasks={"ids": ["task-000", "task-001"]})
    await kit.run(keys[0])
    with pytest.raises(SpecConflict, match="set extend to true to add samples"):
        await kit.register(tasks={"ids": ["task-000", "task-001"]}, samples=2)
    grown = await kit.register(tasks={"ids": ["task-000", "task-001"]}, samples=2, extend=True)
    assert (grown.planned, grown.added, grown.final) == (4, 2, 1)
    assert (await kit.ledger.counts(kit.batch_id)).waiting == 3
    with pytest.raises(SpecConflict, match="did not plan 1 task"):
        await kit.register(tasks={"ids": ["task-000", "task-001", "task-002"]}, samples=2)
    more = await kit.register(tasks={"ids": ["task-002"]}, samples=1, extend=True)
    assert (more.planned, more.added) == (5, 1)
    assert (await kit.planned())[-1].endswith("zebra/task-002/0")
    await kit.clean()


async def test_a_task_keeps_the_version_it_was_planned_with(kit: Kit) -> None:
    name = f"set-{kit.batch_id}"
    old = await kit.ledger.register_task_set(name, make_tasks(3))
    await kit.register(task_set=name)
    changed = [make_task(0, "chrome", "do something else"), *make_tasks(3)[1:]]
    await kit.ledger.register_task_set(name, changed)
    with pytest.raises(SpecConflict, match="chrome/task-000 is another version"):
        await kit.register(task_set=name, samples=2, extend=True)
    assert (await kit.register(task_set=f"{name}@{old.set_digest[:16]}")).added == 0


async def test_reordering_the_set_changes_nothing(kit: Kit) -> None:
    name = f"set-{kit.batch_id}"
    await kit.ledger.register_task_set(name, make_tasks(5))
    await kit.register(task_set=name)
    await kit.ledger.register_task_set(name, list(reversed(make_tasks(5))))
    assert (await kit.register(task_set=name)).added == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {"ids": ["task-00"]}}, r"tasks\.ids: .*did you mean task-00"),
        ({"tasks": {"domains": ["oss"]}}, r"tasks\.domains: .*did you mean os"),
        ({"task_set": "nope"}, "task_set: 'nope' is not registered"),
    ],
)
async def test_wrong_fields_are_named_and_nothing_is_planned(kit: Kit, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await kit.register(**changes)
    with pytest.raises(InvalidInput, match="no batch"):
        await kit.ledger.batch_control(kit.batch_id)


async def test_control_is_cleared_once_per_launch(kit: Kit) -> None:
    await kit.register("l-1")
    await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="pause", freeze=True, reason="lunch"))
    await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="stop"))
    await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="set_concurrency", concurrency=7))
    await kit.register("l-1")
    control = await kit.ledger.batch_control(kit.batch_id)
    assert (control.paused, control.frozen, control.stopping, control.concurrency) == (True, True, True, 7)
    await kit.register("l-2")
    control = await kit.ledger.batch_control(kit.batch_id)
    assert (control.paused, control.frozen, control.stopping, control.concurrency) == (False, False, False, 4)


async def test_resume_ends_pause_and_freeze_but_not_stop(kit: Kit) -> None:
    await kit.register()
    for verb in ("pause", "stop", "resume"):
        await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb=verb))
    control = await kit.ledger.batch_control(kit.batch_id)
    assert (control.paused, control.frozen, control.stopping) == (False, False, True)
    with pytest.raises(InvalidInput, match="no batch 'nobody'"):
        await kit.ledger.set_control(Control(batch_id="nobody", verb="pause"))


async def test_window(kit: Kit) -> None:
    ledger, batch = kit.ledger, kit.batch_id
    keys = await kit.keys()
    rows_ = await ledger.startable(batch)
    assert [row.rollout_key for row in rows_] == keys[:4]
    assert (rows_[0].domain, rows_[0].task_id, rows_[0].sample, rows_[0].policy) == ("chrome", "task-000", 0, "noop")
    assert await ledger.mark_queued(keys[:3]) == sorted(keys[:3])
    assert await ledger.mark_queued(keys[:3]) == []
    assert [row.rollout_key for row in await ledger.startable(batch)] == keys[3:4]
    await ledger.set_control(Control(batch_id=batch, verb="set_concurrency", concurrency=1))
    assert await ledger.startable(batch) == []
    await ledger.set_control(Control(batch_id=batch, verb="set_concurrency", concurrency=100))
    assert len(await ledger.startable(batch, 2)) == 2
    await ledger.set_control(Control(batch_id=batch, verb="pause"))
    assert await ledger.startable(batch) == []
    assert await ledger.in_flight(batch) == sorted(keys[:3])
    assert [row.rollout_key for row in await ledger.stale_queued(batch, -1)] == keys[:3]
    assert await ledger.stale_queued(batch, 3600) == []


async def test_queued_is_skipped_by_an_episode_that_was_faster(kit: Kit) -> None:
    keys = await kit.keys()
    await kit.claim(keys[0])
    assert await kit.ledger.mark_queued(keys[:2]) == [keys[1]]
    assert (await kit.row(keys[0]))["state"] == "running"


async def test_a_script_without_steps_for_a_chosen_task_is_refused(kit: Kit) -> None:
    """It would do nothing there until the step limit, and earn a 0 as if the policy had tried."""
    steps = {"steps": [{"actions": ["DONE"]}]}

    async def register(spec: dict[str, Any], script: dict[str, Any]) -> int:
        digest = await kit.ledger.register_script(f"s-{uuid.uuid4().hex[:8]}", script)
        request = RegisterBatch(
            batch_id=kit.batch_id, namespace=NAMESPACE, spec=spec_of(**spec), launch_id=uuid.uuid4().hex
        )
        resolved = Resolved(desktop_image="i", evaluator_revision="1", script_digest=digest)
        return (await kit.ledger.register_batch(request, deployment_id="test", resolved=resolved)).planned

    scripted: dict[str, Any] = {"policy": {"kind": "scripted", "script": "s"}}
    one = {"tasks": {"task-001": steps}}
    with pytest.raises(InvalidInput, match=r"policy\.script: the script has no steps .* for task-000, task-00[0-9]"):
        await register(scripted, one)
    with pytest.raises(InvalidInput, match=r"policy\.batch: nothing is recorded for .*tasks\.exclude_ids"):
        await register({"policy": {"kind": "replay", "batch": "b"}}, one)
    assert await rows(kit.ledger, "SELECT 1 FROM batch WHERE batch_id = :b", b=kit.batch_id) == []
    assert await register(scripted | {"tasks": {"ids": ["task-001"]}}, one) == 1
    with pytest.raises(SpecConflict):
        await register(scripted | {"extend": True}, one | {"default": steps})
