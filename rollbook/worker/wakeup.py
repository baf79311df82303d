"""Notification between the activities of one worker process."""

import asyncio
import contextlib


class WakeUp:
    """Notifies the pump when an episode of this process has progressed, so that it refills its window at once.

    Only an optimisation: progress of other processes, and a missed notification, are seen at the next poll.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next_event(self) -> asyncio.Event:
        """Set by the next notification. Take it before polling: then `wait_for` misses none that follows the poll."""
        return self._next

    def notify(self) -> None:
        """Wake every waiter."""
        self._next.set()
        self._next = asyncio.Event()


async def wait_for(event: asyncio.Event, at_most_s: float) -> None:
    """Wait for a notification, at most `at_most_s` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
