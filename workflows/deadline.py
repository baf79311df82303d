"""The deadline of an attempt: one timer, suspended while the episode is frozen."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio import workflow

from workflows.activity_calls import Failure
from workflows.shield import Interrupted, until

T = TypeVar("T")


class DeadlineReached(Exception):
    """The deadline of the attempt has passed."""


class Deadline:
    """Counts `seconds` down in workflow time, except while `frozen()` is true."""

    def __init__(self, seconds: float, frozen: Callable[[], bool]) -> None:
        self._remaining = seconds
        self._frozen = frozen
        self._alarm = asyncio.create_task(self._count_down())

    async def _count_down(self) -> None:
        while self._remaining > 0:
            if self._frozen():
                await workflow.wait_condition(lambda: not self._frozen())
            began = workflow.time()
            try:
                await workflow.wait_condition(self._frozen, timeout=self._remaining)
            except TimeoutError:
                return
            self._remaining -= workflow.time() - began

    def check(self) -> None:
        """Raise DeadlineReached when the deadline has passed."""
        if self._alarm.done():
            raise DeadlineReached

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises DeadlineReached when the deadline passes and the cancelled `work` has ended."""
        try:
            return await until(work, self._alarm)
        except Interrupted:
            raise DeadlineReached from None
        except Failure as failure:
            # the deadline came first: a worker that died at that moment must not earn the episode another attempt
            if self._alarm.done():
                raise DeadlineReached from failure
            raise

    def stop(self) -> None:
        """Cancel the timer. Await `ended` before the next command."""
        self._alarm.cancel()

    async def ended(self) -> None:
        """Return when the timer is cancelled."""
        # Python versions differ in the number of turns of the event loop that a cancel takes: a command that overtakes
        # it on one version could not be replayed on another
        await workflow.wait([self._alarm])
