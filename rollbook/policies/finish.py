"""Work that a cancel does not cut: what a model has answered is committed first."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a cancel waits for the work to end, in seconds."""


async def finished(work: Coroutine[Any, Any, T], patience_s: float = PATIENCE_S) -> T:
    """The result of `work`. A cancel, however often it comes, is raised once the work has ended or patience has."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        clock = asyncio.get_running_loop().time
        ends = clock() + patience_s
        while not task.done() and (left := ends - clock()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=left)
        task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # whatever it was, the cancel is what the caller hears
        raise
