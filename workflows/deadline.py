"""The two ends of an attempt's time: worked seconds for the rollout, a far backstop for its infrastructure."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio import workflow

from workflows.activity_calls import Failure
from workflows.shield import Interrupted, until

T = TypeVar("T")


class DeadlineReached(Exception):
    """The attempt has worked for as long as its contract allows."""


class Deadline:
    """Counts the seconds of work that activities report.

    Delays by the infrastructure are not among them: stalls, retries, rate limits, waiting for a worker.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._worked = 0.0

    def spend(self, worked_s: float) -> None:
        """Add the work of an activity."""
        self._worked += worked_s

    @property
    def remaining(self) -> float:
        """Seconds of work that are left."""
        return max(self._seconds - self._worked, 0.0)

    def check(self) -> None:
        """Raise DeadlineReached when no time is left."""
        if self.remaining <= 0:
            raise DeadlineReached


class BackstopReached(Exception):
    """The attempt has lasted far longer than any work of it could."""


class Backstop:
    """One timer for the attempt, in workflow time, suspended while `frozen()` is true."""

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

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises BackstopReached when the time is over and the cancelled `work` has ended."""
        try:
            return await until(work, self._alarm)
        except Interrupted:
            raise BackstopReached from None
        except Failure as failure:
            if self._alarm.done():
                raise BackstopReached from failure  # the cancel may have caused it
            raise

    def stop(self) -> None:
        """Cancel the timer. Await `ended` before the next command."""
        self._alarm.cancel()

    async def ended(self) -> None:
        """Return when the timer is cancelled."""
        # Python versions differ in the number of turns of the event loop that a cancel takes: a command that overtakes
        # it on one version could not be replayed on another
        await workflow.wait([self._alarm])
