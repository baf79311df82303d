"""Two deployments on one task queue, one Temporal and one ledger, by mistake: nothing of one reaches the other."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from models import names
from models.janitor import Reconciled, ReconcileRequest
from rollbook.temporal.namespace import foreign_pollers
from tests.support.system import System, null_spec, running_system, small_tasks, system_settings

Pair = dict[str, System]


@pytest.fixture(scope="module")
async def pair(scratch: Path, ledger_url: str, temporal_address: str) -> AsyncIterator[Pair]:
    shared = {"queue": "q-of-two"}
    first = system_settings(scratch / "one", ledger_url, "one", **shared)
    second = system_settings(scratch / "two", ledger_url, "two", **shared)
    async with running_system(first, temporal_address) as one, running_system(second, temporal_address) as two:
        await one.register_tasks("five", small_tasks(5))
        yield {"one": one, "two": two}


def files(system: System) -> int:
    """Artifacts in the store of a deployment."""
    root = system.settings.state_dir / "artifacts"
    return sum(len(names) for _, _, names in os.walk(root))


async def test_no_desktop_and_no_artifact_crosses(pair: Pair) -> None:
    system = pair["one"]
    result = await system.run_batch(null_spec("five", samples=2, concurrency=5), "crossing")
    assert result.counts.admitted == 10
    async with system.ledger.engine.connect() as connection:
        owner = await connection.scalar(text("SELECT deployment_id FROM batch WHERE batch_id = 'crossing'"))
        query = text("SELECT deployment_id, count(*) FROM sandbox WHERE rollout_key LIKE 'crossing/%' GROUP BY 1")
        leases = {row[0]: row[1] for row in await connection.execute(query)}
    assert leases == {owner: 10}
    (other,) = set(pair) - {str(owner)}
    assert files(pair[str(owner)]) > 0
    assert files(pair[other]) == 0
    assert (await pair[str(owner)].audit("crossing")).ok


async def test_each_janitor_looks_after_its_own(pair: Pair) -> None:
    """Half of the runs reach the other deployment's worker first, which leaves them alone."""
    for number in range(3):
        done: Reconciled = await pair["one"].client.execute_workflow(
            names.JANITOR,
            ReconcileRequest(deployment_id="two"),
            id=f"janitor-{number}",
            task_queue="q-of-two",
            result_type=Reconciled,
        )
        assert done.doubts == []
    histories = [await pair["one"].client.get_workflow_handle(f"janitor-{n}").fetch_history() for n in range(3)]
    identities = {
        event.activity_task_completed_event_attributes.identity.partition(":")[0]
        for history in histories
        for event in history.events
        if event.HasField("activity_task_completed_event_attributes")
    }
    assert identities == {"two"}


async def test_foreign_workers_on_a_queue_are_seen(pair: Pair) -> None:
    for own, other in (("one", "two"), ("two", "one")):
        strangers = await foreign_pollers(pair[own].client, pair[own].settings)
        assert [identity.partition(":")[0] for identity in strangers["q-of-two"]] == [other]
