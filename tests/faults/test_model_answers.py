"""kill -9 of the worker between the model's answer and the action: the answer is used again, never drawn again."""

import asyncio
from pathlib import Path
from typing import Any

from rollbook.evidence.verify import verify
from tests.doubles.model_server import Call, ModelServer, Reply
from tests.support.model_server import DONE, KEY, code, endpoints_file, model_spec, recorded
from tests.support.servers import TemporalServer
from tests.support.system import WorkerProcess, running_system, small_tasks, system_settings
from tests.support.waiting import until

BATCH = "answers"
SLOW_S = 8.0
"""Time after an action without further activity: long enough for a kill."""


async def test_an_answer_outlives_the_worker(scratch: Path, database_url: str, temporal_server: TemporalServer) -> None:
    """Step 2 is answered, then its worker dies before the action has ended; another answer would differ.

    Step 3 has one rejected sample, then its worker dies while the model thinks of the second: only that one is asked
    for again.
    """
    calls: list[Call] = []

    def answer(call: Call) -> Any:
        calls.append(call)
        if call.step == 3 and call.parse_attempt == 1:
            return "no code here"
        if call.step == 3 and len(calls) == 4:
            return Reply("too late", delay_s=30)
        drawn = f"pyautogui.click(0.{call.step}, 0.{len(calls):03d})"  # as sampling would: never the same twice
        return DONE if call.step > 3 else code(drawn)

    directory = scratch / "answers"
    await asyncio.to_thread(directory.mkdir)
    async with ModelServer(answer, api_key=KEY) as server:
        settings = system_settings(
            directory,
            database_url,
            "answers",
            heartbeat_s=3,
            endpoints_file=endpoints_file(directory, {"test": server}),
        )
        worker = WorkerProcess(settings, temporal_server.address, directory / "worker.log")
        async with running_system(settings, temporal_server.address, workers=False) as system:
            await system.register_tasks("one", small_tasks(1))
            await worker.start()
            try:
                settle = {"after_setup_s": 0, "after_action_s": SLOW_S, "before_evaluation_s": 0}
                handle = await system.start_batch(model_spec("one", settle=settle), BATCH)

                async def answered() -> bool:
                    rows = await system.ledger.rollouts_of(BATCH)
                    if not rows or rows[0]["state"] != "running":
                        return False
                    found = await system.ledger.recorded(rows[0]["rollout_key"])
                    return len(found.calls) == 2 and len(found.turns) == 2

                await until("step 2 is answered and not yet acted", answered, 60)
                await worker.kill9()
                await worker.start()

                async def thinking() -> bool:
                    return len(calls) == 4

                await until("the second sample of step 3 is asked for", thinking, 120)
                await worker.kill9()
                await worker.start()
                async with asyncio.timeout(180):
                    await handle.result()
            finally:
                await worker.stop()
            [attempt] = await recorded(system, BATCH)
            assert attempt.outcome is not None
            assert (attempt.attempt_index, attempt.outcome["termination_reason"]) == (1, "agent_done")
            rows = [(call.step, call.parse_attempt, call.accepted) for call in attempt.calls]
            assert rows == [(1, 1, True), (2, 1, True), (3, 1, False), (3, 2, True), (4, 1, True)]
            asked = [(call.step, call.parse_attempt) for call in calls]
            assert asked == [(1, 1), (2, 1), (3, 1), (3, 2), (3, 2), (4, 1)], "only what had no answer is asked again"
            assert (await verify(attempt, system.artifacts)).ok
            assert (await system.audit(BATCH)).ok
