"""A bell between the activities of one worker process."""

import asyncio
import contextlib


class Bell:
    """Rung when an episode of this process has moved on, so that the pump refills its window at once.

    Only a convenience: what other processes do, and every ring that nobody heard, the pump finds when it looks next.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    @property
    def next_ring(self) -> asyncio.Event:
        """Set by the next ring. Take it before looking, then `heard` misses no ring after the look."""
        return self._next

    def ring(self) -> None:
        """Wake everybody who waits."""
        self._next.set()
        self._next = asyncio.Event()


async def heard(ring: asyncio.Event, at_most_s: float) -> None:
    """Wait for a ring, or `at_most_s` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await ring.wait()
