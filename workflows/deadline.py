"""The deadline of an attempt: one timer, which stands still while the episode is frozen."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio import workflow

from workflows.activity_calls import Failure
from workflows.shield import Interrupted, until

T = TypeVar("T")


class DeadlineReached(Exception):
    """The attempt's time is up."""


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
        """Raise DeadlineReached when the time is up."""
        if self._alarm.done():
            raise DeadlineReached

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises DeadlineReached, after `work` was cancelled and has ended, when time is up.

        Whatever failure ends `work` then: the deadline came first, and an episode that used up its time gets no second
        one because its worker died in the same moment.
        """
        try:
            return await until(work, self._alarm)
        except Interrupted:
            raise DeadlineReached from None
        except Failure as failure:
            if self._alarm.done():
                raise DeadlineReached from failure
            raise

    def stop(self) -> None:
        """Forget the timer. Follow it with `ended` before the next command."""
        self._alarm.cancel()

    async def ended(self) -> None:
        """Return when the timer is forgotten.

        How many turns of the loop a cancel takes differs between versions of Python: a command that overtook it on one
        of them could not be replayed on another.
        """
        await workflow.wait([self._alarm])
