"""Claim: one open attempt at a time, later writers are fenced."""

import asyncio
from typing import Any

import pytest

from models.batch import Control
from models.identity import derived_group_id, derived_rollout_id
from rollbook.errors import Fenced, InvalidInput
from tests.support.ledger import Kit, ref, rows


async def test_a_claim_brings_everything_an_episode_needs(kit: Kit) -> None:
    key = (await kit.keys())[2]
    claim = await kit.claim(key)
    group = derived_group_id("task-001")
    assert (claim.status, claim.attempt_index, claim.policy, claim.sample) == ("claimed", 1, "noop", 0)
    assert (claim.domain, claim.task_id, claim.document["instruction"]) == ("os", "task-001", "do it 1")
    assert claim.contract is not None
    assert claim.contract.limits.max_steps == 15
    assert claim.group_id == group
    assert claim.trajectory_rollout_id == derived_rollout_id("task-001", group, 0, 0, "noop")
    row = await kit.row(key)
    assert (row["state"], row["current_attempt"], row["selected_attempt"]) == ("running", 1, None)


async def test_a_repeated_claim_gets_the_same_attempt(kit: Kit) -> None:
    key = (await kit.keys())[0]
    first, again = await kit.claim(key), await kit.claim(key)
    assert first == again
    assert len(await rows(kit.ledger, "SELECT * FROM attempt WHERE rollout_key = :key", key=key)) == 1


async def test_a_repeat_is_answered_while_the_batch_stops(kit: Kit) -> None:
    key = (await kit.keys())[0]
    first = await kit.claim(key)
    await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="stop"))
    assert (await kit.claim(key)).attempt_index == first.attempt_index


async def test_another_run_supersedes_an_open_attempt(kit: Kit) -> None:
    key = (await kit.keys())[0]
    old = await kit.claim(key, "run-1")
    new = await kit.claim(key, "run-2")
    assert new.attempt_index == 2
    assert old.execution_id != new.execution_id
    assert old.trajectory_rollout_id != new.trajectory_rollout_id
    (end,) = await kit.outcomes(key)
    assert (end["termination_reason"], end["mask_sample"], end["score"], end["selected"]) == (
        "superseded",
        True,
        None,
        False,
    )
    for call in (
        kit.claim(key, "run-1", 1),
        kit.claim(key, "run-1", 2),
        kit.end(key, 1, "run-1"),
        kit.end(key, 2, "run-1"),
        kit.step(key, 1, "run-1", 0),
        kit.ledger.attempt_context(ref(key, 1), "run-1"),
        kit.ledger.attempt_context(ref(key, 2), "run-1"),
        kit.ledger.attempt_context(ref(key, 3), "run-1"),
    ):
        with pytest.raises(Fenced):
            await call
    await kit.evaluate(key, 2, "run-2", 1.0)
    assert (await kit.end(key, 2, "run-2")).admitted
    await kit.clean()


async def test_a_reset_run_starts_over_and_the_old_one_is_fenced(kit: Kit) -> None:
    """`temporal workflow reset`: the new run carries the old run's results, so its first write meets the fence."""
    key = (await kit.keys())[0]
    await kit.claim(key, "before-reset", 1)
    with pytest.raises(Fenced):
        await kit.step(key, 1, "after-reset", 0)
    again = await kit.claim(key, "after-reset", 2)
    assert again.attempt_index == 2
    with pytest.raises(Fenced):
        await kit.claim(key, "before-reset", 2)


async def test_a_claim_left_behind_is_fenced(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key, "run-1", 1)
    await kit.end(key, 1, "run-1", infrastructure_failure_reason="sandbox_lost")
    assert (await kit.claim(key, "run-1", 2)).attempt_index == 2
    with pytest.raises(Fenced, match="claim 1 comes too late"):
        await kit.claim(key, "run-1", 1)


async def test_final_needs_no_attempt(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.run(key, "run-1")
    assert (await kit.claim(key, "run-2")).status == "final"
    assert (await kit.row(key))["current_attempt"] == 1
    with pytest.raises(Fenced):
        await kit.claim(key, "run-1", 1)


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_nothing_is_claimed_while_stopping(kit: Kit, how: str) -> None:
    keys = await kit.keys()
    await kit.ledger.mark_queued(keys[:1])
    running = await kit.claim(keys[1], "run-1")
    if how == "stop":
        await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="stop"))
    else:
        await kit.ledger.mark_cancelling(kit.batch_id, "enough")
    assert (await kit.claim(keys[0])).status == "stopping"
    assert (await kit.row(keys[0]))["state"] == "waiting"
    assert (await kit.claim(keys[1], "run-2")).status == "stopping"
    assert (await kit.row(keys[1]))["state"] == "running"
    assert running.attempt_index == 1
    await kit.clean()


async def test_an_unknown_rollout_is_named(kit: Kit) -> None:
    with pytest.raises(InvalidInput, match="no rollout 'x/y/z/0'"):
        await kit.claim("x/y/z/0")


async def test_two_hundred_claims_of_one_rollout_leave_one_open(kit: Kit) -> None:
    key = (await kit.keys())[0]

    async def one(number: int) -> Any:
        try:
            return await kit.claim(key, f"run-{number % 7}", number % 3 + 1)
        except Fenced as error:
            return error

    answers = await asyncio.gather(*(one(number) for number in range(200)))
    claimed = {answer.attempt_index for answer in answers if not isinstance(answer, Fenced)}
    query = """
        SELECT attempt_index, run_id, claim, termination_reason FROM attempt LEFT JOIN outcome
        USING (rollout_key, attempt_index) WHERE rollout_key = :key ORDER BY 1
    """
    made = await rows(kit.ledger, query, key=key)
    assert claimed == {row["attempt_index"] for row in made}
    assert [row["attempt_index"] for row in made] == list(range(1, len(made) + 1))
    assert [row["termination_reason"] for row in made] == ["superseded"] * (len(made) - 1) + [None]
    await kit.clean()
