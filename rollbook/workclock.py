"""The time that a piece of work takes while its process runs.

A stopped process (SIGSTOP, a frozen virtual machine, a host that swaps) does not work, and the clocks go on meanwhile.
So time is counted in short ticks of the event loop, and of a tick that came far too late only the usual part counts.
"""

import asyncio
import contextlib
import time
from types import TracebackType
from typing import Self

TICK_S = 1.0
LONGEST_TICK_S = 5.0
"""Part of a late tick that counts: a busy host delays the event loop by as much, a stall is longer."""


class WorkClock:
    """Counts while entered."""

    def __init__(self) -> None:
        self._counted = 0.0
        self._last = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._last = time.monotonic()
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count()
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        if self._task is not None:
            self._count()
        return self._counted

    def _count(self) -> None:
        now = time.monotonic()
        self._counted += min(now - self._last, LONGEST_TICK_S)
        self._last = now

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._count()
