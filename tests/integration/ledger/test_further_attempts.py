"""Attempts after the agent has acted: counted, named, and left out of the rate of first attempts."""

from rollbook.ledger import Examination
from tests.support.ledger import Kit, ref, rows

BOARD = """
    SELECT attempts, further_attempts, binary_success_rate_of_planned AS planned,
        binary_success_rate_of_first_attempts AS first, wilson_high_of_first_attempts < 1 AS bounded
    FROM scoreboard WHERE batch_id = :b AND domain = '(all)'
"""


async def lost(kit: Kit, key: str, attempt: int, *, acted: bool) -> None:
    """An attempt whose desktop was lost, before or after the agent's first action."""
    await kit.claim(key, "run-1", attempt)
    for step in (0, 1) if acted else (0,):
        await kit.step(key, attempt, "run-1", step)
    found = Examination(cause="unknown", cause_detail="it is sound again")
    await kit.ledger.commit_examination(ref(key, attempt), "run-1", found)
    await kit.end(key, attempt, "run-1", steps=int(acted), infrastructure_failure_reason="sandbox_lost")


async def won(kit: Kit, key: str, attempt: int) -> None:
    await kit.claim(key, "run-1", attempt)
    for step in (0, 1):
        await kit.step(key, attempt, "run-1", step, "DONE" if step else None)
    await kit.evaluate(key, attempt, "run-1", 1.0)
    await kit.end(key, attempt, "run-1")


async def test_the_dice_are_thrown_once(kit: Kit) -> None:
    keys = (await kit.keys(tasks={"ids": [task.task_id for task in kit.tasks[:4]]}))[:4]
    await lost(kit, keys[0], 1, acted=True)
    await lost(kit, keys[0], 2, acted=True)
    await won(kit, keys[0], 3)  # the third throw
    await lost(kit, keys[1], 1, acted=False)
    await won(kit, keys[1], 2)  # the first one: before it nothing had been done
    await won(kit, keys[2], 1)
    await kit.run(keys[3], score=0.0)
    (board,) = await rows(kit.ledger, BOARD, b=kit.batch_id)
    assert tuple(board.values()) == (7, 2, 0.75, 0.5, True)
    notices = [notice for notice in (await kit.clean()).notices if notice.kind == "further_attempt"]
    assert [notice.subject for notice in notices] == [keys[0]] * 2
    assert notices[1].detail == (
        "attempt 3 was made although the agent had acted in attempt 1; attempt 2 ended as sandbox_lost, "
        "cause unknown: it is sound again"
    )


async def test_a_batch_without_further_attempts_has_one_rate(kit: Kit) -> None:
    keys = await kit.keys(tasks={"ids": [kit.tasks[0].task_id]}, samples=2)
    await won(kit, keys[0], 1)
    await kit.run(keys[1], score=0.0)
    (board,) = await rows(kit.ledger, BOARD, b=kit.batch_id)
    assert tuple(board.values()) == (2, 0, 0.5, 0.5, True)
    assert not (await kit.clean()).notices
