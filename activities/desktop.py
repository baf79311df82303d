"""Observations and actions of the agent: observe, act."""

import asyncio
import time
from typing import Any

from temporalio import activity

from activities.support import Activities, beating, driving, implements, run_id
from models.activities import ACT, OBSERVE
from models.episode import Acted, ActRequest, DesktopRequest, Observation, Observed
from models.identity import op_id
from models.outcome import Infra
from rollbook.desktop.driver import Driver
from rollbook.errors import LedgerConflict
from rollbook.ledger.records import AttemptContext, StoredTurn
from rollbook.policies.base import WAIT
from rollbook.redaction import redact_head
from rollbook.sandboxes.pressure import read_pressure
from rollbook.workclock import WorkClock
from rollbook.worker.services import Services

INITIAL_STEP = 0
"""The turn that holds the first observation, before any step."""


class DesktopActivities:
    """Observe and act on the desktop of an attempt."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.observe, self.act]

    @implements(OBSERVE)
    async def observe(self, call: DesktopRequest) -> Observed:
        """Take the first observation and commit it as turn 0."""
        ledger = self._services.ledger
        so_far = await ledger.step(call.attempt, run_id(), INITIAL_STEP)
        context, stored, clock = so_far.context, so_far.turn, WorkClock()
        if stored is None:
            began = time.time()
            async with driving(self._services, call) as driver, beating(), clock:
                seen, answer_s = await self._look(driver, context)
            stored = await ledger.commit_turn(
                call.attempt,
                run_id(),
                step=INITIAL_STEP,
                observation=seen,
                actions=[],
                started_at=began,
                pressure=read_pressure(),
                answer_s=answer_s,
            )
        return Observed(observation=stored.observation, worked_s=clock.seconds)

    @implements(ACT)
    async def act(self, request: ActRequest) -> Acted:
        """Run the stored actions of a step, each at most once; settle; observe.

        A repeat finds the committed turn, or the guest's journal, and acts on nothing twice.
        """
        ledger = self._services.ledger
        so_far = await ledger.step(request.attempt, run_id(), request.step)
        context, call, stored, clock = so_far.context, so_far.call, so_far.turn, WorkClock()
        if stored is None:
            if call is None:
                raise LedgerConflict(f"step {request.step} of {request.attempt.rollout_key} was never decided")
            began = time.time()
            async with driving(self._services, request) as driver, beating() as note, clock:
                done = await self._run(driver, context, request, call.actions, note)
                seen, answer_s = await self._look(driver, context)
            stored = await ledger.commit_turn(
                request.attempt,
                run_id(),
                step=request.step,
                observation=seen,
                actions=done,
                started_at=began,
                pressure=read_pressure(),
                answer_s=answer_s,
            )
        return _acted(stored, clock.seconds)

    async def _run(
        self, driver: Driver, context: AttemptContext, request: ActRequest, actions: list[str], note: Any
    ) -> list[dict[str, Any]]:
        """Run actions in order; the first one that times out ends the step."""
        contract = context.contract
        pause = contract.settle.after_action_s
        done: list[dict[str, Any]] = []
        for position, action in enumerate(actions):
            note(f"action {position + 1} of {len(actions)}")
            if action.strip() == WAIT:
                done.append({"status": "ok", "wait": True})
                await asyncio.sleep(pause)  # as in OSWorld, WAIT pauses once more than other actions
            else:
                result = await driver.perform(
                    op_id(context.rollout_key, context.attempt_index, request.step, position),
                    action,
                    runtime=contract.action_runtime,
                    timeout_s=contract.limits.action_timeout_s,
                    first_try=activity.info().attempt == 1,
                )
                done.append(
                    {
                        "op_id": result.op_id,
                        "status": result.status,
                        "error": result.error and redact_head(result.error, 2000),
                        "repeated": result.repeated,
                        "duration_s": result.duration_s,
                    }
                )
                if result.status in ("timeout", "refused"):
                    break
            await asyncio.sleep(pause)
        if not actions:
            await asyncio.sleep(pause)
        return done

    async def _look(self, driver: Driver, context: AttemptContext) -> tuple[Observation, float]:
        """Observe. Returns also the seconds in which the desktop answered."""
        asked_at = time.monotonic()
        parts, desktop = context.contract.observe, context.contract.desktop
        seen = await driver.observe(
            screen=desktop.screen,
            accessibility_tree=parts.accessibility_tree,
            terminal=parts.terminal,
        )
        answer_s = time.monotonic() - asked_at
        for part, reason in seen.refused.items():
            activity.logger.warning("the desktop gave no %s: %s", part, reason)
        put = self._services.artifacts.put
        tree, text = seen.accessibility_tree, seen.terminal
        observation = Observation(
            screenshot=await put(seen.screenshot, "image/png"),
            accessibility_tree=None if tree is None else await put(tree.encode(errors="replace"), "application/xml"),
            terminal=None if text is None else await put(text.encode(errors="replace"), "text/plain; charset=utf-8"),
        )
        return observation, answer_s


def _acted(turn: StoredTurn, worked_s: float) -> Acted:
    statuses = [action["status"] for action in turn.actions]
    failure = Infra.ACTION_TIMEOUT if "timeout" in statuses else None
    return Acted(
        observation=turn.observation,
        in_doubt=statuses.count("in_doubt"),
        raised=statuses.count("raised"),
        # another code under an id that only we give: the agent wrote the claim
        failure=Infra.DESKTOP_BROKEN if "refused" in statuses else failure,
        worked_s=worked_s,
    )
