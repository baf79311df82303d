"""Work that a cancel does not cut: it ends first, within its patience, and the cancel is never forgotten."""

import asyncio

import pytest

from rollbook.policies.call_log import finish_despite_cancel


async def test_its_result_and_its_error_come_through() -> None:
    async def good() -> int:
        return 7

    async def bad() -> int:
        raise LookupError("no")

    assert await finish_despite_cancel(good()) == 7
    with pytest.raises(LookupError, match="no"):
        await finish_despite_cancel(bad())


@pytest.mark.parametrize("cancels", [1, 2, 5])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancel_waits_for_the_end_of_the_work(cancels: int, fails: bool) -> None:
    ended = asyncio.Event()
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        ended.set()
        if fails:
            raise LookupError("nobody hears it")

    task = asyncio.create_task(finish_despite_cancel(work()))
    for _ in range(cancels):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_its_patience_ends() -> None:
    cut = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    task = asyncio.create_task(finish_despite_cancel(work(), patience_s=0.05))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await cut.wait()


async def test_work_that_is_cancelled_itself_says_so() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await finish_despite_cancel(work())
