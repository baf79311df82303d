"""One read before a step: its result, and that its cache never replaces the fence."""

import pytest

from models.episode import Observation
from rollbook.errors import Fenced
from rollbook.ledger import ModelCall
from rollbook.ledger.fence import ContextCache
from tests.support.ledger import Kit, artifact, ref


async def test_what_is_committed_of_a_step(kit: Kit) -> None:
    key = (await kit.keys())[0]
    claim = await kit.claim(key)
    attempt = ref(key, 1)
    before = await kit.ledger.step(attempt, "run-1", 1)
    assert (before.call, before.turn) == (None, None)
    assert before.context == await kit.ledger.attempt_context(attempt, "run-1")
    assert before.context.contract == claim.contract
    bad = ModelCall(step=1, policy_kind="model", accepted=False, parse_error="no code", failure_kind="unparseable")
    await kit.ledger.commit_model_call(attempt, "run-1", bad)
    assert (await kit.ledger.step(attempt, "run-1", 1)).call is None, "nothing decided yet"
    good = ModelCall(step=1, parse_attempt=2, policy_kind="model", actions=["WAIT", "press('a')"])
    stored = await kit.ledger.commit_model_call(attempt, "run-1", good)
    seen = Observation(screenshot=artifact("s"), terminal=artifact("t"))
    turn = await kit.ledger.commit_turn(
        attempt, "run-1", step=1, observation=seen, actions=[{"status": "ok"}], started_at=0.0
    )
    after = await kit.ledger.step(attempt, "run-1", 1)
    assert (after.call, after.turn) == (stored, turn)
    assert (await kit.ledger.step(attempt, "run-1", 2)).call is None


async def test_a_remembered_attempt_is_fenced_all_the_same(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    await kit.ledger.step(ref(key, 1), "run-1", 1)
    with pytest.raises(Fenced, match="belongs to run run-1"):
        await kit.ledger.step(ref(key, 1), "run-2", 1)
    with pytest.raises(Fenced, match="does not exist"):
        await kit.ledger.step(ref(key, 2), "run-1", 1)
    await kit.claim(key, "run-2")
    with pytest.raises(Fenced, match="has ended"):
        await kit.ledger.step(ref(key, 1), "run-1", 1)
    await kit.ledger.step(ref(key, 2), "run-2", 1)


async def test_no_more_is_remembered_than_there_is_room_for(kit: Kit) -> None:
    keys, contexts = (await kit.keys())[:3], ContextCache(size=2)
    async with kit.ledger.engine.connect() as conn:
        for key in keys:
            await kit.claim(key)
            assert (await contexts.get(conn, ref(key, 1), "run-1")).rollout_key == key
    assert len(contexts) == 2
