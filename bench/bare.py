"""The floor: a worker with Rollbook's Episode workflow whose activities do nothing at all.

What a step costs here is Temporal's share (server, SDK, workflow sandbox, converter); the rest of a real step is ours.
Run as `python -m bench.bare ADDRESS QUEUE STEPS`; prints a line once it polls.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.client import Client

from models import names
from models.episode import (
    Acted,
    ActRequest,
    AttemptRef,
    Claimed,
    ClaimRequest,
    DecideRequest,
    Decision,
    DesktopRef,
    DesktopRequest,
    EpisodePlan,
    Evaluated,
    EvaluateRequest,
    Finalized,
    FinalizeRequest,
    Observation,
    Observed,
    PhaseDone,
)
from models.evidence import ArtifactRef
from rollbook.config.settings import load_settings
from rollbook.temporal.plugin import RollbookPlugin
from worker_main import make_worker
from workflows.episode import Episode

SEEN = Observation(screenshot=ArtifactRef(sha256="0" * 64, size_bytes=70, media_type="image/png"))


class BareActivities:
    """Answers of the size that the real activities give, without any effect."""

    def __init__(self, queue: str, steps: int) -> None:
        self._queue = queue
        self._steps = steps

    def all(self) -> list[Callable[..., Any]]:
        """The activities, for a worker."""
        return [
            *(self.claim, self.start_sandbox, self.prepare_task, self.observe, self.decide, self.act),
            *(self.run_postconfig, self.evaluate, self.finalize, self.stop_sandbox),
        ]

    @activity.defn(name=names.CLAIM)
    async def claim(self, request: ClaimRequest) -> Claimed:
        seconds = dict.fromkeys(
            ("deadline_s", "model_timeout_s", "action_timeout_s", "setup_timeout_s"), 600.0
        ) | dict.fromkeys(("evaluate_timeout_s", "start_timeout_s"), 600.0)
        plan = EpisodePlan(
            batch_id="bare",
            task_id="t",
            domain="os",
            sample=0,
            instruction="do nothing",
            max_steps=self._steps,
            desktop_queue=self._queue,
            osworld_queue=self._queue,
            **seconds,
        )
        return Claimed(status="claimed", attempt_index=1, plan=plan)

    @activity.defn(name=names.START_SANDBOX)
    async def start_sandbox(self, attempt: AttemptRef) -> DesktopRef:
        return DesktopRef(provider="null", sandbox_id="null-" + "0" * 32, sandbox_key="0" * 32, nonce="null")

    @activity.defn(name=names.PREPARE_TASK)
    async def prepare_task(self, call: DesktopRequest) -> PhaseDone:
        return PhaseDone()

    @activity.defn(name=names.OBSERVE)
    async def observe(self, call: DesktopRequest) -> Observed:
        return Observed(observation=SEEN)

    @activity.defn(name=names.DECIDE)
    async def decide(self, request: DecideRequest) -> Decision:
        last = request.step >= self._steps
        return Decision(terminal_action="DONE" if last else None, action_count=0 if last else 1, summary="WAIT")

    @activity.defn(name=names.ACT)
    async def act(self, request: ActRequest) -> Acted:
        return Acted(observation=SEEN)

    @activity.defn(name=names.RUN_POSTCONFIG)
    async def run_postconfig(self, call: DesktopRequest) -> PhaseDone:
        return PhaseDone()

    @activity.defn(name=names.EVALUATE)
    async def evaluate(self, request: EvaluateRequest) -> Evaluated:
        return Evaluated(completed=True, score=0.0)

    @activity.defn(name=names.FINALIZE)
    async def finalize(self, request: FinalizeRequest) -> Finalized:
        return Finalized(termination_reason="agent_done", admitted=True, score=0.0, reward=0.0, selected=True)

    @activity.defn(name=names.STOP_SANDBOX)
    async def stop_sandbox(self, attempt: AttemptRef) -> None:
        return None


async def _main(address: str, queue: str, steps: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await Client.connect(address, plugins=[RollbookPlugin()])
    settings = load_settings(_env_file=None)
    async with make_worker(client, queue, ([Episode], BareActivities(queue, steps).all()), settings):
        print("polling", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    os._exit(0)  # the client library's threads may crash an interpreter that takes its time to end
