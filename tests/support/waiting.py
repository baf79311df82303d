"""Waiting for something to become true."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(what: str, condition: Callable[[], Awaitable[Any]], patience_s: float = 240) -> Any:
    """The condition's first true value; errors of servers that are down just now do not count."""
    ends_at = time.monotonic() + patience_s
    trouble = ""
    while time.monotonic() < ends_at:
        try:
            if found := await condition():
                return found
        except Exception as error:
            trouble = f" (last error: {error})"
        await asyncio.sleep(0.2)
    raise AssertionError(f"never: {what}{trouble}")
