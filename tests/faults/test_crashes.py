"""kill -9 of worker, Temporal and Postgres in the middle of a batch on real desktops."""

import pytest

from tests.support.waiting import until
from tests.support.world import Victim, World

TASKS = [f"count-{number}" for number in range(4)]


# The fast tier kills a worker in tests/integration/test_stack_batches.py, servers in test_servers.py beside it.
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "temporal", "postgres"])
async def test_a_batch_survives_the_death_of(victim: Victim, world: World) -> None:
    batch_id = f"crash-{victim}"
    handle = await world.system.start_batch(world.spec(tasks={"ids": TASKS}), batch_id)
    query = "SELECT count(*) AS n FROM turn JOIN rollout USING (rollout_key) WHERE batch_id = :id AND step > 1"
    acted = 0
    for _ in range(2):

        async def acts() -> bool:
            return bool((await world.rows(query, id=batch_id))[0]["n"] >= acted + 2)  # noqa: B023 - awaited here

        await until("actions are being run", acts)
        await world.kill(victim)
        acted = (await world.rows(query, id=batch_id))[0]["n"]
    result = await world.result(handle, 400)
    assert (result.state, result.counts.planned) == ("complete", len(TASKS))
    outcomes = await world.scored(batch_id)
    # exactly once, as counted in the guest; an attempt may be masked and repeated, never scored wrongly
    assert [(row["score"], row["termination_reason"]) for row in outcomes] == [(1.0, "agent_done")] * len(TASKS)
    report = await world.system.audit(batch_id)
    assert report.ok, report.findings
    doubled = await world.rows(
        "SELECT rollout_key FROM outcome JOIN rollout USING (rollout_key) WHERE batch_id = :id AND NOT mask_sample"
        " GROUP BY rollout_key HAVING count(*) > 1",
        id=batch_id,
    )
    assert doubled == []
    await world.no_desktop_is_left()
