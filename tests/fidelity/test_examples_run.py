"""Every example batch, through the whole system on real desktops: the scores that OSWorld's own evaluator gives.

These tests take minutes. They are the proof that an example does what it says, and that an untouched desktop earns
nothing.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import docker
import pytest

from rollbook.ledger.reader import Reader
from tests.fidelity.conftest import example
from tests.support.model_server import recorded
from tests.support.servers import containers_of
from tests.support.system import System

pytestmark = pytest.mark.slow

SOLVED = "agent_done", 1.0
UNTOUCHED = "agent_done", 0.0
INFEASIBLE = "b3d4a89c-53f2-4d6b-8b6a-541fb5d205fa"

Ending = tuple[str, float]


@dataclass
class Played:
    """A finished batch as recorded in its ledger."""

    endings: dict[str, set[Ending]]
    """Task → how its samples ended: termination reason and score."""
    rewards: list[float]
    trouble: list[dict[str, Any]]
    """Steps whose actions raised in the guest or ended unknown."""


async def play(system: System, spec: dict[str, Any], batch_id: str) -> Played:
    """Run a batch to its end; everything must be admitted, and the audit clean."""
    result = await system.run_batch(spec, batch_id)
    url = system.settings.database_url
    assert url is not None
    reader = Reader.connect(url.get_secret_value())
    try:
        rows = await reader.rollouts(batch_id)
        steps = [step for row in rows for step in await reader.steps(row["rollout_key"], row["selected_attempt"])]
    finally:
        await reader.aclose()
    assert (result.state, result.counts.admitted) == ("complete", len(rows)), [dict(row) for row in rows]
    report = await system.audit(batch_id)
    assert report.ok, report.findings
    endings: dict[str, set[Ending]] = {}
    for row in rows:
        endings.setdefault(row["task_id"], set()).add((row["termination_reason"], row["score"]))
    return Played(
        endings, [row["reward"] for row in rows], [step for step in steps if step["raised"] or step["in_doubt"]]
    )


async def no_desktop_left(docker_client: docker.DockerClient, deployment_id: str) -> None:
    """A batch is whole when every row is final; the last desktops are stopped right after that."""
    for _ in range(120):
        left = await asyncio.to_thread(containers_of, docker_client, deployment_id)
        if not left:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"desktops are left: {left}")


@pytest.fixture(scope="module")
async def quickstart(system: System) -> Played:
    """The quickstart batch, played."""
    return await play(system, example("batches/quickstart.json"), "quickstart")


@pytest.fixture(scope="module")
async def solved(osworld: System) -> Played:
    """Canonical tasks by script, played."""
    return await play(osworld, example("batches/osworld-os-offline.json"), "osworld-solved")


async def test_quickstart_ends_as_expected(
    system: System, quickstart: Played, docker_client: docker.DockerClient
) -> None:
    played = quickstart
    expected = example("quickstart/expected.json")
    assert played.endings == {task_id: {(one["termination_reason"], one["score"])} for task_id, one in expected.items()}
    assert played.trouble == []
    await no_desktop_left(docker_client, system.settings.deployment_id)


async def test_quickstart_untouched_earns_nothing(system: System) -> None:
    played = await play(system, example("batches/quickstart-noop.json"), "quickstart-noop")
    assert set().union(*played.endings.values()) == {UNTOUCHED}
    assert set(played.rewards) == {0.0}


async def test_a_training_group_has_one_row_per_sample(system: System) -> None:
    played = await play(system, example("batches/train-group.json"), "train-group")
    assert played.endings == {"cafe-menu": {SOLVED}}
    assert played.rewards == [1.0] * 4
    assert played.trouble == []


async def test_canonical_tasks_are_solved_by_script(solved: Played) -> None:
    spec, played = example("batches/osworld-os-offline.json"), solved
    wanted = {task_id: {SOLVED} for task_id in spec["tasks"]["ids"]} | {INFEASIBLE: {("agent_fail", 1.0)}}
    assert played.endings == wanted
    assert played.trouble == []


async def test_a_replay_scores_the_same(system: System, quickstart: Played) -> None:
    """The recorded actions, on other desktops: the same endings, fractions of a score included."""
    spec = example("batches/quickstart.json") | {"policy": {"kind": "replay", "batch": "quickstart"}}
    again = await play(system, spec, "quickstart-replay")
    assert (again.endings, again.trouble) == (quickstart.endings, [])
    assert sorted(again.rewards) == sorted(quickstart.rewards)
    assert len({score for _, score in set().union(*again.endings.values())}) > 1, "the scores tell the tasks apart"
    await same_actions(system, "quickstart", "quickstart-replay")


async def test_a_replay_of_canonical_tasks_scores_the_same(osworld: System, solved: Played) -> None:
    spec = example("batches/osworld-os-offline.json") | {"policy": {"kind": "replay", "batch": "osworld-solved"}}
    again = await play(osworld, spec, "osworld-replay")
    assert (again.endings, again.trouble) == (solved.endings, [])
    await same_actions(osworld, "osworld-solved", "osworld-replay")


async def same_actions(system: System, first: str, second: str) -> None:
    """Both batches hold the same actions, the second one as a replay."""
    for source, again in zip(await recorded(system, first), await recorded(system, second), strict=True):
        assert source.rollout["task_id"] == again.rollout["task_id"]
        said = [[(call.actions, call.terminal_action) for call in one.calls] for one in (source, again)]
        assert said[0] == said[1]
        assert {call.policy_kind for call in again.calls} == {"replay"}


async def test_canonical_tasks_untouched_earn_nothing(osworld: System) -> None:
    spec = example("batches/osworld-os-offline.json") | {"policy": {"kind": "noop"}}
    played = await play(osworld, spec, "osworld-untouched")
    assert played.endings == {task_id: {UNTOUCHED} for task_id in spec["tasks"]["ids"]}
