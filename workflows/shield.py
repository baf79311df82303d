"""Waiting for work in a workflow that may be cancelled meanwhile."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> tuple[T, bool]:
    """Finish `work` despite a cancel. Returns its result and whether a cancel arrived.

    A plain `await` in `finally` is not enough: a cancel that arrives during the cleanup cancels the cleanup.
    """
    task = asyncio.create_task(work)
    cancelled = False
    while True:
        try:
            return await asyncio.shield(task), cancelled
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True


async def settled(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. A cancel is passed on to it and raised when it has ended, even if it returned a result.

    A plain `await` is not enough: an activity that finishes before the cancel reaches it returns its result, the cancel
    is lost, and Temporal sends no second one.
    """
    task = asyncio.create_task(work)
    try:
        await workflow.wait([task])
    except asyncio.CancelledError:
        with contextlib.suppress(Interrupted, Exception):
            await _end(task)
        raise
    return task.result()


class Interrupted(Exception):
    """The alarm finished first; the work was cancelled and has ended."""


async def until(work: Coroutine[Any, Any, T], alarm: "asyncio.Task[None]") -> T:
    """The result of `work`; raises Interrupted when `alarm` finished first and `work` ended by its cancel.

    A result that arrives at the same moment as the alarm counts.
    """
    task = asyncio.create_task(work)
    try:
        await workflow.wait([task, alarm], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        with contextlib.suppress(Interrupted, Exception):
            await _end(task)
        raise
    return task.result() if task.done() else await _end(task)


async def _end(task: "asyncio.Task[T]") -> T:
    """Cancel a task and wait for its end; a result that it still had is returned."""
    task.cancel()
    try:
        return await task
    except BaseException as error:
        if is_cancelled_exception(error):
            raise Interrupted from None
        raise
