"""Every example batch, through the whole system on real desktops: the scores that OSWorld's own evaluator gives.

These tests take minutes. They are the proof that an example does what it says, and that an untouched desktop earns
nothing.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import docker

from rollbook.ledger.queries import Reader
from tests.fidelity.conftest import example
from tests.stackkit import containers_of
from tests.system import System

SOLVED = "agent_done", 1.0
UNTOUCHED = "agent_done", 0.0
INFEASIBLE = "b3d4a89c-53f2-4d6b-8b6a-541fb5d205fa"

Ending = tuple[str, float]


@dataclass
class Played:
    """A finished batch as its ledger tells it."""

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


async def test_quickstart_ends_as_expected(system: System, docker_client: docker.DockerClient) -> None:
    played = await play(system, example("batches/quickstart.json"), "quickstart")
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


async def test_canonical_tasks_are_solved_by_script(osworld: System) -> None:
    spec = example("batches/osworld-os-offline.json")
    played = await play(osworld, spec, "osworld-solved")
    wanted = {task_id: {SOLVED} for task_id in spec["tasks"]["ids"]} | {INFEASIBLE: {("agent_fail", 1.0)}}
    assert played.endings == wanted
    assert played.trouble == []


async def test_canonical_tasks_untouched_earn_nothing(osworld: System) -> None:
    spec = example("batches/osworld-os-offline.json") | {"policy": {"kind": "noop"}}
    played = await play(osworld, spec, "osworld-untouched")
    assert played.endings == {task_id: {UNTOUCHED} for task_id in spec["tasks"]["ids"]}
