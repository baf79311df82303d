"""Keeps one child running: watches it, reports its end, starts it again with growing pauses."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from rollbook.errors import RollbookError
from rollbook.stack.children import Child, describe_exit
from rollbook.stack.state import ChildPhase, ChildState

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A child that ran this long after it was ready starts over with the shortest pause."""

logger = logging.getLogger(__name__)


class Keeper:
    """One child and its line in the state file; `changed` is called after every change of that line."""

    def __init__(self, child: Child, state: ChildState, changed: Callable[[], None]) -> None:
        self.child = child
        self.state = state
        self._changed = changed
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """First start: an error here is the caller's, there is no second try."""
        await self._launch()
        self._watch = asyncio.create_task(self._keep(), name=f"keep-{self.child.name}")

    async def stop(self) -> None:
        """End the child for good."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        await self.child.stop()
        self.state.ref = None
        self._set("stopped")
        logger.info("%s stopped", self.child.name)

    async def _launch(self) -> None:
        self._set("starting")
        self.state.ref = await self.child.spawn()
        self._changed()
        try:
            await self.child.wait_ready()
        except BaseException:
            await self.child.kill9()
            self.state.ref = None
            raise
        self._set("ready")
        logger.info("%s ready (pid %d)", self.child.name, self.state.ref.pid)

    async def _keep(self) -> None:
        failures = 0
        while True:
            code = await self.child.wait()
            await self.child.kill9()  # what it may have left behind in its process group
            failures = 0 if time.time() - self.state.since > STEADY_S else failures
            self._died(describe_exit(code))
            while not await self._try_again(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**failures)):
                failures += 1
            failures += 1

    async def _try_again(self, pause_s: float) -> bool:
        logger.warning("%s starts again in %.1f s", self.child.name, pause_s)
        await asyncio.sleep(pause_s)
        self.state.restarts += 1
        try:
            await self._launch()
        except (RollbookError, OSError) as error:
            self._died(str(error))
            return False
        return True

    def _died(self, why: str) -> None:
        logger.error("%s died: %s", self.child.name, why)
        self.state.ref = None
        self.state.last_exit = why
        self._set("restarting")

    def _set(self, phase: ChildPhase) -> None:
        self.state.phase = phase
        self.state.since = time.time()
        self._changed()
