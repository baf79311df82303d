"""`docker restart` of a desktop between two steps: the container is the same, the desktop is another."""

import asyncio

from tests.support.waiting import until
from tests.support.world import World

KEY = "restarted/os/plain/0"


async def test_a_restarted_desktop_is_a_lost_one(world: World) -> None:
    handle = await world.system.start_batch(world.spec(tasks={"ids": ["plain"]}), "restarted")

    async def second_turn() -> bool:
        return bool((await world.rows("SELECT count(*) AS n FROM turn WHERE rollout_key = :key", key=KEY))[0]["n"] >= 2)

    await until("it acts", second_turn)
    (container,) = await asyncio.to_thread(world.containers)
    await asyncio.to_thread(container.restart, timeout=0)
    async with asyncio.timeout(240):
        await handle.result()
    ended = await world.rows(
        "SELECT attempt_index, termination_reason, score FROM outcome WHERE rollout_key = :key ORDER BY 1", key=KEY
    )
    assert [tuple(row.values()) for row in ended] == [(1, "sandbox_lost", None), (2, "agent_done", 1.0)]
    measured = await world.rows(
        "SELECT pressure <> '{}' AND answer_s > 0 AS both FROM turn WHERE rollout_key = :key", key=KEY
    )
    assert len(measured) >= 8
    assert all(row["both"] for row in measured), "each step has the host's pressure and the desktop's answer time"
    report = await world.system.audit("restarted")
    assert report.ok, report.findings
    await world.no_desktop_is_left()
