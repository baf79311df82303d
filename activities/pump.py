"""The pump keeps a window of episodes running; close_batch ends a cancelled batch.

Both are long activities on the ledger's facts: no lock is held across a call to Temporal, and everything may be
repeated, because an Episode is started by its rollout's id and only `claim` decides whether it has anything to do.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import (
    Priority,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.support import Activities, beating, implements
from models import attributes, names
from models.activities import CLOSE_BATCH, PUMP, SET_CONTROL
from models.batch import CloseBatch, Control, Counts, PumpRequest, PumpResult
from models.episode import EpisodeStart
from rollbook.ledger.control import HELD
from rollbook.ledger.records import StartRow
from rollbook.worker.services import Services
from rollbook.worker.wakeup import wait_for

IDLE_S = 0.5
"""Longest pause between two reads of the ledger; an episode that ends in this process ends the pause."""
STARTS_AT_ONCE = 16
HELD_LOOK_S = 2.0
"""Pause between two looks at whether the model server is away."""
SHOWN_S = 5.0
"""The workflow's details may be wrong for so long about whether anything is started."""
STALE_QUEUED_S = 30.0
"""An episode that has not claimed after this time is started again, which is harmless if it is only waiting."""
DESKTOPS_WAIT_S = 60.0
"""Longest wait of a finished batch for its last desktops; the Janitor removes those that remain."""
CANCEL_WAIT_S = 240.0
"""Longest wait for cancelled episodes to finalize and clean up, before their rows are closed for them."""


class PumpActivities:
    """Start episodes, and stop them."""

    def __init__(self, services: Services, client: Client) -> None:
        self._services = services
        self._client = client

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.pump, self.set_control, self.close_batch]

    @implements(PUMP)
    async def pump(self, request: PumpRequest) -> PumpResult:
        """Keep the window full until the batch is whole, has stopped, or the slice is over."""
        ledger, batch_id = self._services.ledger, request.batch_id
        ends_at = time.monotonic() + request.slice_s
        shown_until, look_at, held = time.monotonic() + SHOWN_S, 0.0, ""
        async with beating() as note:
            if request.thaw and not (await ledger.batch_control(batch_id)).frozen:
                await self._each(await ledger.in_flight(batch_id), self._thaw)
            while True:
                progress = self._services.wake_up.next_event
                control = await ledger.batch_control(batch_id)
                stopping = control.stopping or control.cancelling
                if time.monotonic() >= look_at:
                    held = "" if stopping or control.paused else await self._why_held(batch_id)
                    look_at = time.monotonic() + HELD_LOOK_S
                if held != control.reason and (held or control.reason.startswith(HELD)):
                    await ledger.hold(batch_id, held)
                if not control.cancelling and not held and (control.stopping or not control.paused):
                    await self._fill(batch_id)  # while stopping: only what was queued and never claimed
                state = await self._state(batch_id, stopping)
                if state is not None and await self._desktops_end(batch_id, state, ends_at):
                    state = None
                shown = bool(held) == request.held or time.monotonic() < shown_until
                if state is None and (time.monotonic() >= ends_at or not shown):
                    state = "continue"
                if state is not None:
                    counts = await ledger.counts(batch_id)
                    digest = (await ledger.completions(batch_id))[-1].digest if state == "whole" else ""
                    return PumpResult.model_validate({"state": state, "counts": counts, "digest": digest, "held": held})
                note("paused" if control.paused else held or "running")
                await wait_for(progress, IDLE_S)

    @implements(CLOSE_BATCH)
    async def close_batch(self, request: CloseBatch) -> Counts:
        """Refuse new claims, cancel the episodes of the ledger's list, then close every row that is still open."""
        ledger, batch_id = self._services.ledger, request.batch_id
        reason = request.reason or "the batch was cancelled"
        async with beating() as note:
            await ledger.mark_cancelling(batch_id, reason, request.launch_id)
            ends_at = time.monotonic() + CANCEL_WAIT_S
            while open_rows := await self._still_running(await ledger.in_flight(batch_id)):
                # refuses, should the batch have been launched again meanwhile
                await ledger.mark_cancelling(batch_id, reason, request.launch_id)
                note(f"{len(open_rows)} episodes are ending")
                await self._each(open_rows, self._cancel)
                if time.monotonic() >= ends_at:
                    break
                await asyncio.sleep(1.0)
            keep = self._services.artifacts.put
            await ledger.close_open(batch_id, reason, launch_id=request.launch_id, keep=keep)
            return await ledger.counts(batch_id)

    @implements(SET_CONTROL)
    async def set_control(self, change: Control) -> None:
        """Write a change of control; signal freezing and thawing to the running episodes."""
        ledger = self._services.ledger
        before = await ledger.batch_control(change.batch_id)
        await ledger.set_control(change)
        if change.verb == names.PAUSE and change.freeze:
            await self._each(await ledger.in_flight(change.batch_id), self._freeze)
        if change.verb == names.RESUME or (change.verb == names.STOP and before.frozen):
            await self._each(await ledger.in_flight(change.batch_id), self._thaw)

    async def _fill(self, batch_id: str) -> None:
        ledger = self._services.ledger
        rows = await ledger.startable(batch_id, limit=500)
        rows += await ledger.stale_queued(batch_id, older_than_s=STALE_QUEUED_S, limit=100)
        for start in range(0, len(rows), STARTS_AT_ONCE):
            page = rows[start : start + STARTS_AT_ONCE]
            await asyncio.gather(*(self._start(row) for row in page))
            await ledger.mark_queued([row.rollout_key for row in page], again=True)
        if rows and (await ledger.batch_control(batch_id)).frozen:
            await self._each([row.rollout_key for row in rows], self._freeze)

    async def _why_held(self, batch_id: str) -> str:
        """The reason for which nothing new may start: the model server is away. Empty while it answers.

        The calls of running rollouts say so; where none runs, the server is asked, if this worker has its profile: a
        desktop that waits for its model would be worth nothing.
        """
        ledger = self._services.ledger
        endpoint = (await ledger.launched_spec(batch_id))["policy"].get("endpoint")
        if endpoint is None:
            return ""
        if trouble := await ledger.endpoint_trouble(batch_id):
            return f"{HELD}endpoint {endpoint!r}: {trouble}"
        if endpoint not in self._services.models.names or await ledger.in_flight(batch_id):
            return ""
        if trouble := await self._services.models.get(endpoint).trouble():
            return f"{HELD}{trouble}"
        return ""

    async def _desktops_end(self, batch_id: str, state: str, ends_at: float) -> bool:
        """Return whether the end of the batch must wait for its last desktops, which are gone once it is complete.

        A whole batch waits from the moment it became whole, however often the pump is called again.
        """
        if state != "whole" and time.monotonic() >= ends_at:
            return False
        return await self._services.ledger.has_desktops(batch_id, DESKTOPS_WAIT_S)

    async def _state(self, batch_id: str, stopping: bool) -> str | None:
        ledger = self._services.ledger
        if await ledger.batch_is_whole(batch_id, self._services.artifacts.put):
            return "whole"
        if stopping and not await ledger.in_flight(batch_id):
            return "stopped"
        return None

    async def _start(self, row: StartRow) -> None:
        await self._client.start_workflow(
            names.EPISODE,
            EpisodeStart(rollout_key=row.rollout_key),
            id=row.rollout_key,
            task_queue=self._services.settings.task_queue_orchestrate,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            search_attributes=_attributes(row),
            static_summary=f"{row.domain} {row.task_id} sample {row.sample}",
            priority=Priority(fairness_key=row.batch_id[:64]),
        )

    async def _still_running(self, keys: list[str]) -> list[str]:
        """Rows in flight whose workflow runs; others have nothing to wait for."""
        return [key for key in keys if await self._alive(key)]

    async def _alive(self, key: str) -> bool:
        try:
            description = await self._client.get_workflow_handle(key).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            raise
        except ValueError:
            return True  # a state that this SDK does not know, for instance paused
        return description.status == WorkflowExecutionStatus.RUNNING

    async def _cancel(self, key: str) -> None:
        await _if_there(self._client.get_workflow_handle(key).cancel())

    async def _freeze(self, key: str) -> None:
        await _if_there(self._client.get_workflow_handle(key).signal(names.FREEZE))

    async def _thaw(self, key: str) -> None:
        await _if_there(self._client.get_workflow_handle(key).signal(names.THAW))

    @staticmethod
    async def _each(keys: list[str], work: Callable[[str], Awaitable[None]]) -> None:
        for start in range(0, len(keys), STARTS_AT_ONCE):
            await asyncio.gather(*(work(key) for key in keys[start : start + STARTS_AT_ONCE]))


async def _if_there(call: Awaitable[None]) -> None:
    """Await a call to a workflow; one that has ended or never existed is skipped."""
    try:
        await call
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


def _attributes(row: StartRow) -> TypedSearchAttributes:
    keyword = SearchAttributeKey.for_keyword
    return TypedSearchAttributes(
        [
            SearchAttributePair(keyword(attributes.BATCH), row.batch_id),
            SearchAttributePair(keyword(attributes.TASK), row.task_id),
            SearchAttributePair(keyword(attributes.DOMAIN), row.domain),
            SearchAttributePair(keyword(attributes.POLICY), row.policy),
            SearchAttributePair(SearchAttributeKey.for_int(attributes.SAMPLE), row.sample),
        ]
    )
