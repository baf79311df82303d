"""Ends as `desktop_broken`: no score, no other attempt unless the contract says so, counted apart."""

from typing import Any

import pytest

from rollbook.ledger import Examination
from tests.support.hostile import BY_EPISODE, attack, ending
from tests.support.ledger import Kit, ref, rows

BROKEN: dict[str, Any] = {"infrastructure_failure_reason": "desktop_broken"}
FORGED = Examination(tampered=True, detail="/opt/rollbook/guest/app.py was changed", evidence={"changed": ["app.py"]})


async def broken(kit: Kit, key: str, score: float | None = None) -> Any:
    """An attempt that acted, perhaps forged a score, and was found out."""
    await kit.claim(key)
    for step in (0, 1):
        await kit.step(key, 1, "run-1", step)
    if score is not None:
        await kit.evaluate(key, 1, "run-1", score)
    await kit.ledger.commit_examination(ref(key, 1), "run-1", FORGED)
    return await kit.end(key, 1, "run-1", steps=1, **BROKEN)


async def test_a_forged_score_is_none(kit: Kit) -> None:
    key, other = (await kit.keys())[:2]
    done = await broken(kit, key, 1.0)
    assert (done.termination_reason, done.admitted, done.score, done.reward) == ("desktop_broken", False, None, None)
    assert not done.another_attempt
    assert await kit.end(key, 1, "run-1", steps=1, **BROKEN) == done, "a repeat gets the same answer"
    await kit.run(other)
    report = await kit.clean()
    (notice,) = [notice for notice in report.notices if notice.kind == "desktop_broken"]
    assert (notice.subject, "app.py was changed" in notice.detail, "policy noop" in notice.detail) == (key, True, True)
    assert "evaluated_then_closed" in {notice.kind for notice in report.notices}
    query = "SELECT desktop_broken, masked FROM scoreboard WHERE batch_id = :b AND domain = '(all)'"
    assert await rows(kit.ledger, query, b=kit.batch_id) == [{"desktop_broken": 1, "masked": 1}]
    query = """SELECT task_id, policy, rollouts, attempts, tampered, tried_again, on_desktop_broken FROM broken_desktops
        WHERE batch_id = :b"""
    assert [tuple(row.values()) for row in await rows(kit.ledger, query, b=kit.batch_id)] == [
        (key.split("/")[2], "noop", 1, 1, 1, 0, "mask")
    ]
    (attempt,) = (await kit.ledger.rollout(key))["attempts"]
    assert (attempt["tampered"], attempt["evidence"]) == (True, {"changed": ["app.py"]})


async def test_the_first_examination_counts(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    first = Examination(cause="guest", cause_detail="it ended by itself")
    assert await kit.ledger.commit_examination(ref(key, 1), "run-1", first) == first
    assert await kit.ledger.commit_examination(ref(key, 1), "run-1", FORGED) == first
    assert await kit.ledger.examination(ref(key, 1)) == first
    assert await kit.ledger.examination(ref(key, 2)) is None


async def test_another_attempt_only_where_the_contract_says_so(kit: Kit) -> None:
    key = (await kit.keys(on_desktop_broken="retry"))[0]
    assert (await broken(kit, key)).another_attempt
    (notice,) = [notice for notice in (await kit.clean()).notices if notice.kind == "desktop_broken"]
    assert "another attempt was due" in notice.detail


async def test_postgres_refuses_what_the_rules_do(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    for step in (0, 1, 2, 3):
        await kit.step(key, 1, "run-1", step, "DONE" if step == 3 else None)
    await kit.evaluate(key, 1, "run-1", 0.25)
    await kit.ledger.commit_examination(ref(key, 1), "run-1", FORGED)
    assert "was not the image's" in await attack(kit.ledger, *ending(key, **BY_EPISODE))
    said = {
        "infra": "'desktop_broken'",
        "termination": "'desktop_broken'",
        "reason": "'desktop_broken'",
        "eligible": "false",
        "action": "NULL",
    }
    assert "outcome_broken_has_no_score" in await attack(kit.ledger, *ending(key, **said))
    said |= {"evaluated": "false", "score": "NULL", "reward": "NULL", "next": "'running'"}
    assert "earns no other attempt" in await attack(kit.ledger, *ending(key, **said))
    for change in ("UPDATE examination SET tampered = false", "DELETE FROM examination"):
        assert "examination" in await attack(kit.ledger, change)


@pytest.mark.parametrize("trained", [True, False], ids=["caller", "derived"])
async def test_the_contract_may_train_on_it_with_reward_0(kit: Kit, trained: bool) -> None:
    task_id = kit.tasks[0].task_id
    identity = {"sampling_event_id": kit.batch_id, "source_group_ids": {task_id: "group"}}
    chosen = {"identity": identity} if trained else {}
    tasks = {"ids": [task_id]}
    keys = await kit.keys(samples=3, tasks=tasks, on_desktop_broken="zero_reward", **chosen)
    await broken(kit, keys[0], 1.0)
    for key in keys[1:]:
        await kit.run(key, score=1.0)
    query = """
        SELECT score, reward, reward_source, runtime_admitted, training_admitted, trainable, training_reason,
            group_valid, round(group_baseline::numeric, 3)::float AS baseline,
            round(group_advantage::numeric, 3)::float AS advantage
        FROM training_rows WHERE batch_id = :b ORDER BY sample LIMIT 2
    """
    zeroed, counted = [tuple(row.values()) for row in await rows(kit.ledger, query, b=kit.batch_id)]
    unknown = "caller_owned_rollout_identity_unavailable"
    why = ("desktop_broken_zero_reward", "valid_training_sample") if trained else (unknown, unknown)
    assert zeroed == (None, 0, "desktop_broken", False, False, trained, why[0], 3, 0.667, -0.667)
    assert counted == (1, 1, "evaluator", True, trained, trained, why[1], 3, 0.667, 0.333)
    await kit.clean()
