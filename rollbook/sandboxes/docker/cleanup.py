"""What a start that failed leaves behind, removed for a bounded time; nothing that happens here replaces the error."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rollbook.sandboxes.docker.spec import explain
from rollbook.sandboxes.provider import Ours, SandboxSpec

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 30.0


class FailedStarts:
    """Cleanups under way, and creations that may still bring something to clean up."""

    def __init__(self, stop_key: Callable[[str], Awaitable[int]]) -> None:
        self._stop_key = stop_key
        self._creations: dict[asyncio.Task[str], str] = {}
        self._cleanups: set[asyncio.Task[None]] = set()

    def remember(self, key: str, call: Coroutine[Any, Any, str]) -> asyncio.Task[str]:
        """A creation whose caller is cancelled goes on in its thread; the cleanup waits for what it brings."""
        creation = asyncio.create_task(call)
        self._creations[creation] = key
        creation.add_done_callback(lambda task: self._creations.pop(task, None))
        return creation

    async def clean_up(self, spec: SandboxSpec, error: BaseException, ours: Ours) -> None:
        """Log the error, then remove what carries the key, unless `ours` says no; wait `cleanup_timeout_s` for it."""
        log.warning("desktop %s did not start: %s", spec.key, explain(error))
        cleanup = asyncio.create_task(self._clean_up(spec.key, ours))
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)
        try:
            done, _ = await asyncio.wait({cleanup}, timeout=spec.cleanup_timeout_s)
        except asyncio.CancelledError:
            log.warning("desktop %s: cancelled again, its cleanup goes on in the background", spec.key)
            return
        if not done:
            log.error("desktop %s: cleanup took over %g s, left to the janitor", spec.key, spec.cleanup_timeout_s)
        elif cleanup.exception() is not None:
            log.error("desktop %s: cleanup failed: %s", spec.key, cleanup.exception())

    async def _clean_up(self, key: str, ours: Ours) -> None:
        if not await ours():
            log.warning("desktop %s: another try has it, or will have; left alone", key)
            return
        creations = [task for task, name in self._creations.items() if name == key]
        await asyncio.gather(*creations, return_exceptions=True)
        await self._stop_key(key)

    async def close(self) -> None:
        """Wait a while for the cleanups under way."""
        if self._cleanups:
            await asyncio.wait(self._cleanups, timeout=CLOSE_WAIT_S)
