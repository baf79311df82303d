"""`docker kill` of a desktop: never a score from a dead desktop, and a fresh one scores. An engine that is away for a
while kills nothing, and costs no attempt."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from models import names
from tests.doubles.engine_gate import EngineGate
from tests.support.waiting import until
from tests.support.world import World

TRIES = 4
"""The fourth try of an activity is one that failed three times."""


async def _pending(world: World, key: str) -> list[Any]:
    """Activities of a rollout that are under way or will be tried again."""
    description = await world.system.client.get_workflow_handle(key).describe()
    return list(description.raw_description.pending_activities)


async def _runs(world: World, key: str, activity: str) -> None:
    """Wait until `activity` of a rollout runs."""

    async def running() -> bool:
        pending = await _pending(world, key)
        return any(one.activity_id == activity and one.HasField("last_started_time") for one in pending)

    await until(f"{activity} runs", running)


async def _kill_when(world: World, key: str, activity: str) -> None:
    """Kill the desktop of a rollout while `activity` of its first attempt runs."""
    await _runs(world, key, activity)
    for container in await asyncio.to_thread(world.containers):
        if container.labels["rollbook.rollout"] == key:
            await asyncio.to_thread(container.kill)


@pytest.mark.parametrize(
    ("task", "activity"),
    [
        ("plain", "a1-s003-act"),
        pytest.param("slow-postconfig", "a1-run-postconfig", marks=pytest.mark.slow),
        ("slow-evaluation", "a1-evaluate"),
    ],
)
async def test_a_desktop_dies(world: World, task: str, activity: str) -> None:
    batch_id = f"lost-{task}"
    handle = await world.system.start_batch(world.spec(tasks={"ids": [task]}), batch_id)
    key = f"{batch_id}/os/{task}/0"
    await _kill_when(world, key, activity)
    async with asyncio.timeout(240):
        await handle.result()
    rows = await world.rows(
        "SELECT attempt_index, termination_reason, score, reward, mask_sample FROM outcome"
        " WHERE rollout_key = :key ORDER BY 1",
        key=key,
    )
    first, second = rows
    assert first["termination_reason"] in ("sandbox_lost", "evaluator_error")
    assert (first["score"], first["reward"], first["mask_sample"]) == (None, None, True)
    assert (second["termination_reason"], second["score"], second["mask_sample"]) == ("agent_done", 1.0, False)
    report = await world.system.audit(batch_id)
    assert report.ok, report.findings
    await world.no_desktop_is_left()


async def _fails_three_times(world: World, key: str, what: str) -> None:
    """Wait until an activity of kind `what` was tried three times in vain, for want of an engine."""

    async def tried() -> list[Any]:
        return [one for one in await _pending(world, key) if one.attempt >= TRIES]

    (stuck,) = await until(f"{what} was tried three times", tried, 60)
    assert stuck.activity_type.name == what
    assert "the Docker engine does not answer" in stuck.last_failure.message


async def _evaluation_asks(world: World) -> None:
    """Wait until the desktop answers the evaluator: before that, the evaluation itself needs the engine."""

    def asked() -> bool:
        rows = [row for container in world.containers() for row in container.top()["Processes"] or []]
        return any(row[-1].startswith("sleep 8") for row in rows)

    await until("the evaluator's command runs", lambda: asyncio.to_thread(asked))


async def test_an_engine_that_is_away_costs_no_attempt(world: World, gate: EngineGate) -> None:
    """It is away while the episode acts, and again when it is to be examined; one attempt is all there is."""
    spec = world.spec(tasks={"ids": ["slow-evaluation"]}, max_attempts=1)
    handle = await world.system.start_batch(spec, "away")
    key = "away/os/slow-evaluation/0"
    await _runs(world, key, "a1-s002-act")
    await gate.shut()
    await _fails_three_times(world, key, names.ACT)
    await gate.open()
    await _evaluation_asks(world)
    await gate.shut()
    await _fails_three_times(world, key, names.EXAMINE_DESKTOP)
    assert len(await asyncio.to_thread(world.containers)) == 1
    await gate.open()
    async with asyncio.timeout(240):
        await handle.result()
    (only,) = await world.rows(
        "SELECT attempt_index, termination_reason, score, mask_sample, detail FROM outcome WHERE rollout_key = :key",
        key=key,
    )
    assert tuple(only.values()) == (1, "agent_done", 1.0, False, ""), only
    report = await world.system.audit("away")
    assert report.ok, report.findings
    await world.no_desktop_is_left()


async def test_cancel_leaves_no_desktop_within_a_minute_and_no_open_row(world: World) -> None:
    handle = await world.system.start_batch(world.spec(tasks={"ids": ["plain"]}, samples=6, concurrency=2), "cancelled")

    async def two_desktops() -> bool:
        return len(await asyncio.to_thread(world.containers)) >= 2

    await until("two desktops run", two_desktops)
    async with asyncio.timeout(60):  # a promise to users, counted from the cancel
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        await world.no_desktop_is_left()
    counts = await world.system.ledger.counts("cancelled")
    assert (counts.planned, counts.waiting, counts.running) == (6, 0, 0)
    report = await world.system.audit("cancelled")
    assert report.ok, report.findings
    assert await asyncio.to_thread(world.containers) == [], "nor did one come late"
