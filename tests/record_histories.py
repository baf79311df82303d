"""`python -m tests.record_histories`: plays the episodes of `tests/histories` anew on real desktops.

Run it when a change of workflow code is meant to give other commands; a change that is not meant to must replay the
old ones. They are recorded on Python 3.11 and replay on every later one.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import docker
from temporalio.client import WorkflowFailureError

from rollbook.config.settings import PROJECT_ROOT, get_settings
from rollbook.sandboxes.docker.image import ensure_image
from tests.support.servers import remove_deployment, scratch_directory
from tests.support.waiting import until
from tests.support.world import World, counting_script, counting_task, killable_world

HISTORIES = PROJECT_ROOT / "tests" / "histories"
INFEASIBLE = {"id": "infeasible", "instruction": "Fly.", "config": [], "evaluator": {"func": "infeasible"}}
TASKS = [counting_task("plain"), counting_task("unlucky"), INFEASIBLE]


def _impersonal(event: Any) -> Any:
    """An event without what belongs to one machine: tracebacks and the names of processes."""
    if isinstance(event, dict):
        kept = {key: _impersonal(value) for key, value in event.items() if key != "stackTrace"}
        return kept | ({"identity": "worker"} if "identity" in kept else {})
    if isinstance(event, str):
        return re.sub(r"^\d+@.+-(?=[0-9a-f]{32}$)", "worker-", event)  # a sticky queue
    return [_impersonal(one) for one in event] if isinstance(event, list) else event


async def _keep(world: World, name: str, workflow_id: str) -> None:
    history = await world.system.client.get_workflow_handle(workflow_id).fetch_history()
    stored = {"workflow_id": workflow_id, "history": _impersonal(json.loads(history.to_json()))}
    text = json.dumps(stored, separators=(",", ":"), sort_keys=True) + "\n"
    await asyncio.to_thread((HISTORIES / f"{name}.json").write_text, text)
    print(f"{name}: {len(history.events)} events", flush=True)


async def _acts(world: World, key: str, step: int) -> None:
    """Wait until an episode has taken a step."""

    async def taken() -> bool:
        return bool(
            await world.rows("SELECT 1 FROM turn WHERE rollout_key = :key AND step = :step", key=key, step=step)
        )

    await until(f"step {step} of {key}", taken)


async def _complete(world: World) -> None:
    """One desktop dies in the middle of its first attempt."""
    handle = await world.system.start_batch(world.spec(concurrency=3), "gold")
    await _acts(world, "gold/os/unlucky/0", 2)
    for container in await asyncio.to_thread(world.containers):
        if container.labels["rollbook.rollout"] == "gold/os/unlucky/0":
            await asyncio.to_thread(container.kill)
    await handle.result()
    await _keep(world, "batch-complete", "gold")
    await _keep(world, "episode-infeasible", "gold/os/infeasible/0")
    await _keep(world, "episode-second-attempt", "gold/os/unlucky/0")


async def _frozen(world: World) -> None:
    handle = await world.system.start_batch(world.spec(tasks={"ids": ["plain"]}), "frozen")
    await _acts(world, "frozen/os/plain/0", 2)
    await handle.signal("pause", {"freeze": True})
    await asyncio.sleep(4)
    await handle.signal("resume")
    await handle.result()
    await _keep(world, "batch-frozen", "frozen")
    await _keep(world, "episode-frozen", "frozen/os/plain/0")


async def _late(world: World) -> None:
    handle = await world.system.start_batch(world.spec(tasks={"ids": ["plain"]}, limits={"deadline_s": 4}), "late")
    await handle.result()
    await _keep(world, "episode-deadline", "late/os/plain/0")


async def _cancelled(world: World) -> None:
    handle = await world.system.start_batch(world.spec(tasks={"ids": ["plain"]}), "cancelled")
    await _acts(world, "cancelled/os/plain/0", 2)
    await handle.cancel()
    try:
        await handle.result()
    except WorkflowFailureError:
        await _keep(world, "batch-cancelled", "cancelled")
        await _keep(world, "episode-cancelled", "cancelled/os/plain/0")


async def _record(directory: Path) -> None:
    script: dict[str, Any] = counting_script()
    script["tasks"] = {"infeasible": {"steps": [{"actions": ["FAIL"]}]}}
    if get_settings().desktop_image is None:
        await ensure_image()
    client = docker.from_env()
    async with killable_world(
        directory / "world", "histories", client, heartbeat_s=4, pump_slice_s=3, max_desktops=4
    ) as world:
        await world.system.register_tasks("counting", TASKS)
        await world.system.register_script("counting", script)
        for play in (_complete, _frozen, _late, _cancelled):
            await play(world)
    remove_deployment(client, "histories")
    client.close()


def main() -> int:
    """Record; returns the exit code."""
    with scratch_directory("rollbook-histories-") as directory:
        asyncio.run(_record(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
