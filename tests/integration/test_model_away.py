"""A model server that is away: no start, no attempt spent, the reason in every place, and it goes on by itself."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from rollbook.ledger.control import HELD
from rollbook.policies.client import client as model_client
from rollbook.stack.processes import free_port
from tests.doubles.model_server import ModelServer
from tests.support.batches import details
from tests.support.model_server import DONE, Scenario, endpoints_file, model_spec
from tests.support.system import System, running_system, small_tasks, system_settings
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_client, "LOOK_S", 0.5)
        patch.setattr("rollbook.policies.model.LONGEST_PAUSE_S", 1.0)
        patch.setattr("activities.pump.HELD_LOOK_S", 0.5)
        yield


@pytest.fixture(scope="module")
def server() -> ModelServer:
    """Not listening until it is entered."""
    return ModelServer(lambda call: DONE, api_key="mk-0123456789abcdef", port=free_port())


@pytest.fixture(scope="module")
async def system(
    scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str, server: ModelServer
) -> AsyncIterator[System]:
    directory = scratch / "away"
    await asyncio.to_thread(directory.mkdir)
    wrong = ModelServer(Scenario(), port=server.port)
    file = endpoints_file(directory, {"test": server, "wrong": wrong})
    text = file.read_text()
    head, tail = text.split("[endpoints.wrong]")
    file.write_text(f"{head}[endpoints.wrong]{tail.replace('mk-0123456789abcdef', 'mk-of-somebody-else')}")
    settings = system_settings(directory, ledger_url, deployment_id, endpoints_file=file)
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("six", small_tasks(6))
        yield system


async def _reason(system: System, batch_id: str) -> str:
    return (await system.ledger.batch_control(batch_id)).reason


async def _attempts(system: System, batch_id: str) -> list[int]:
    rows = await system.ledger.rollouts_of(batch_id)
    return [(await system.ledger.rollout(row["rollout_key"]))["attempts"][-1]["attempt_index"] for row in rows]


async def test_away_at_the_launch_starts_no_desktop(system: System, server: ModelServer) -> None:
    handle = await system.start_batch(model_spec("six"), "away-first")

    async def held() -> bool:
        return (await _reason(system, "away-first")).startswith(f"{HELD}endpoint 'test' at {server.url}")

    await until("the reason is kept", held)
    assert await system.ledger.in_flight("away-first") == []
    counts = await system.ledger.counts("away-first")
    assert (counts.planned, counts.waiting) == (6, 6)
    await until("Temporal shows it", lambda: _shows(handle, HELD))
    await handle.execute_update("control", {"verb": "pause"})

    async def without_reason() -> bool:
        return await _reason(system, "away-first") == ""

    await until("a paused batch does not speak of the server", without_reason)
    await handle.execute_update("control", {"verb": "resume"})
    await until("it is held again", held)
    async with server:
        result = await handle.result()
    assert result.counts.admitted == 6
    assert await _attempts(system, "away-first") == [1] * 6
    assert await _reason(system, "away-first") == ""
    assert HELD not in await details(handle)


async def _shows(handle: Any, words: str) -> bool:
    return words in await details(handle)


async def test_away_in_the_middle_costs_no_attempt_and_starts_nothing_more(system: System, server: ModelServer) -> None:
    async with server:
        server.script = lambda call: DONE if call.step > 1 else "no code"  # steps last a while: parser retries
        handle = await system.start_batch(model_spec("six", concurrency=2), "away-later")

        async def called() -> bool:
            return len(await system.ledger.in_flight("away-later")) == 2 and bool(server.calls)

        await until("two are running", called)
    running = await system.ledger.in_flight("away-later")

    async def held() -> bool:
        return "running rollouts wait; last: " in await _reason(system, "away-later")

    await until("it is seen", held)
    seen = set(await system.ledger.in_flight("away-later"))
    await asyncio.sleep(2)
    assert set(await system.ledger.in_flight("away-later")) == seen, (running, "nothing more was started")
    server.script = lambda call: DONE
    async with server:
        result = await handle.result()
    assert result.counts.admitted == 6
    assert await _attempts(system, "away-later") == [1] * 6


async def test_a_wrong_key_is_found_before_anything_is_planned(system: System, server: ModelServer) -> None:
    async with server:
        handle = await system.start_batch(model_spec("six", {"endpoint": "wrong"}), "wrong-key")
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    message = str(failed.value.cause)
    assert "policy.endpoint: endpoint 'wrong': HTTP 401" in message
    assert "mk-of" not in message
    assert await system.ledger.deployment_of("wrong-key") is None


async def test_a_model_that_is_not_listed_is_a_notice(system: System, server: ModelServer) -> None:
    async with server:
        await system.run_batch(model_spec("six", {"model": "another"}, tasks={"ids": ["t000"]}), "not-listed")
    notice = (await system.ledger.batch("not-listed")).notice
    assert notice == "endpoint 'test' does not list the model 'another', it lists: double-vl"
