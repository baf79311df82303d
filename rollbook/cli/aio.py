"""Runs the asynchronous part of a command."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import typer

_SETTLE_S = 0.05


def finish(work: Coroutine[Any, Any, int]) -> None:
    """Run `work`, which returns the command's exit code."""
    if code := asyncio.run(_settled(work)):
        raise typer.Exit(code)


async def _settled(work: Coroutine[Any, Any, int]) -> int:
    code = await work
    # The Temporal client's threads come to rest before the loop closes (temporal-notes §0.13).
    await asyncio.sleep(_SETTLE_S)
    return code
