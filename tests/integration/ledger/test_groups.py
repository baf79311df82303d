"""Baselines and advantages of comparison groups against hand-worked tables: who votes, and when."""

from typing import Any

import pytest

from models.admission import AdmissionDecision, Scope
from tests.integration.ledger.test_redecide import EXACT, ONE_TASK, TRAINING, rule, trainers
from tests.support.ledger import Kit, rows


async def test_baselines_leave_masked_members_out(kit: Kit) -> None:
    """By hand: rewards 1, 1, 0 of the valid; a timeout that was scored 0 anyway; two never evaluated.

    Baseline 2/3, advantages +1/3, +1/3, -2/3. With the masked zero it would be 1/2 (NeMo-RL #4061).
    """
    keys = await kit.keys(samples=6, **trainers())
    for key, score in zip(keys, (1.0, 1.0, 0.0), strict=False):
        await kit.run(key, score=score)
    await kit.claim(keys[3])
    await kit.evaluate(keys[3], 1, "run-1", 0.0)
    await kit.end(keys[3], 1, "run-1", infrastructure_failure_reason="timeout", evaluation_completed=True)
    await kit.claim(keys[4])
    await kit.end(keys[4], 1, "run-1", infrastructure_failure_reason="setup_failed")
    await kit.claim(keys[4], n=2)
    await kit.end(keys[4], 2, "run-1", infrastructure_failure_reason="setup_failed")
    query = "SELECT * FROM training_rows WHERE batch_id = :b ORDER BY sample"
    await kit.claim(keys[5])
    await kit.end(keys[5], 1, "run-1", infrastructure_failure_reason="timeout")
    found = await rows(kit.ledger, query, b=kit.batch_id)
    assert [(row["sample"], row["reward"], row["runtime_admitted"]) for row in found] == [
        (0, 1.0, True),
        (1, 1.0, True),
        (2, 0.0, True),
        (3, 0.0, False),
        (4, None, False),
        (5, None, False),
    ]
    for row in found:
        assert (row["group_members"], row["group_valid"], row["group_planned"]) == (6, 3, 6)
        assert row["group_baseline"] == pytest.approx(2 / 3)
    advantages = [row["group_advantage"] for row in found]
    assert advantages[:3] == [pytest.approx(1 / 3), pytest.approx(1 / 3), pytest.approx(-2 / 3)]
    assert advantages[3:] == [None, None, None]
    assert sum(advantages[:3]) == pytest.approx(0)
    mask = AdmissionDecision(policy_id="rollbook-manual-v1", admitted=False, reason="contaminated")
    for key in keys[1:3]:
        await kit.ledger.decide_admission(key, mask, decided_by="ann")
    found = await rows(kit.ledger, query, b=kit.batch_id)
    assert [(row["group_valid"], row["group_advantage"]) for row in found] == [(1, None)] * 6, "one alone is no signal"


async def compared(kit: Kit) -> list[tuple[Any, ...]]:
    """Of each final member: sample, trainable, voters, baseline, advantage."""
    query = """
        SELECT sample, trainable, group_valid, group_baseline, group_advantage FROM training_rows
        WHERE batch_id = :b ORDER BY sample
    """
    return [tuple(row.values()) for row in await rows(kit.ledger, query, b=kit.batch_id)]


async def test_what_is_not_trained_on_has_no_vote(kit: Kit) -> None:
    """Rewards 1, 0, 0; the 1 is masked for training: baseline 0, not 1/3. Admitted again it votes again: 1/3."""
    keys = await kit.keys(samples=3, purpose="train", **trainers())
    for key, score in zip(keys, (1.0, 0.0, 0.0), strict=True):
        await kit.run(key, score=score)
    leaked = AdmissionDecision(
        scope=Scope.TRAINING, policy_id="rollbook-manual-v1", admitted=False, reason="leaked the answer"
    )
    await kit.ledger.decide_admission(keys[0], leaked, decided_by="ann")
    assert await compared(kit) == [(0, False, 2, 0.0, None), (1, True, 2, 0.0, 0.0), (2, True, 2, 0.0, 0.0)]
    await kit.ledger.reapply_policy(kit.batch_id, rule(TRAINING, override_manual=True))
    third = pytest.approx(1 / 3)
    assert await compared(kit) == [
        (0, True, 3, third, pytest.approx(2 / 3)),
        (1, True, 3, third, pytest.approx(-1 / 3)),
        (2, True, 3, third, pytest.approx(-1 / 3)),
    ]
    await kit.ledger.reapply_policy(kit.batch_id, rule(EXACT))
    assert await compared(kit) == [(sample, False, 0, None, None) for sample in range(3)], "nobody has tokens"


async def test_without_a_trainers_identity_counting_decides_who_votes(kit: Kit) -> None:
    """Rewards 1, 0 and a masked 0: baseline 1/2. None is trainable."""
    keys = await kit.keys(samples=3, **ONE_TASK)
    for key, score in zip(keys, (1.0, 0.0, 0.0), strict=True):
        await kit.run(key, score=score)
    mask = AdmissionDecision(policy_id="rollbook-manual-v1", admitted=False, reason="contaminated")
    await kit.ledger.decide_admission(keys[2], mask, decided_by="ann")
    assert await compared(kit) == [(0, False, 2, 0.5, 0.5), (1, False, 2, 0.5, -0.5), (2, False, 2, 0.5, None)]


async def test_half_a_group_gives_no_signal(kit: Kit) -> None:
    """Rewards 1, 0 of four planned: with the others 1 and 1 the baseline is 3/4, not 1/2. A rerun takes it back."""
    keys = await kit.keys(samples=4, purpose="train", **trainers())
    for key, score in zip(keys[:2], (1.0, 0.0), strict=True):
        await kit.run(key, score=score)
    await kit.claim(keys[2])
    assert await compared(kit) == [(0, True, 2, None, None), (1, True, 2, None, None)]
    await kit.end(keys[2], 1, "run-1", infrastructure_failure_reason="timeout")
    assert await compared(kit) == [(0, True, 2, None, None), (1, True, 2, None, None), (2, False, 2, None, None)]
    await kit.run(keys[3])
    whole = [(0, True, 3, pytest.approx(2 / 3), pytest.approx(1 / 3)), (2, False, 3, pytest.approx(2 / 3), None)]
    assert [row for row in await compared(kit) if row[0] in (0, 2)] == whole
    await kit.ledger.request_rerun(kit.batch_id, [keys[2]], reason="slow host", requested_by="bob")
    assert {row[3:] for row in await compared(kit)} == {(None, None)}
    await kit.run(keys[2])
    three_quarters = [(0, 0.25), (1, -0.75), (2, 0.25), (3, 0.25)]
    assert await compared(kit) == [(sample, True, 4, 0.75, advantage) for sample, advantage in three_quarters]
    await kit.clean()
