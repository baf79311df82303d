"""Evidence: committed before it is acted upon, the first commit counts, nothing is added to an ended attempt."""

import asyncio
import math
from typing import Any

import pytest
from pydantic import ValidationError

from models.episode import Observation
from models.outcome import Infra
from rollbook.errors import Fenced, LedgerError
from rollbook.ledger import Evaluation, ModelCall
from tests.support.ledger import ORIGIN, Kit, artifact, ref, rows


async def test_racing_decisions_agree_on_the_first(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)

    async def decide(number: int) -> Any:
        call = ModelCall(step=1, policy_kind="noop", actions=[f"act {number}"], response=artifact(f"{number}"))
        return await kit.ledger.commit_model_call(ref(key, 1), "run-1", call)

    answers = await asyncio.gather(*(decide(number) for number in range(10)))
    assert len({answer.actions[0] for answer in answers}) == 1
    assert await kit.ledger.model_call(ref(key, 1), 1) == answers[0]


async def test_parser_retries_are_calls_of_their_own(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    attempt = ref(key, 1)
    assert await kit.ledger.find_model_call(attempt, 1) is None
    with pytest.raises(LedgerError, match="step 1"):
        await kit.ledger.model_call(attempt, 1)
    bad = ModelCall(step=1, policy_kind="model", accepted=False, parse_error="no code", failure_kind="unparseable")
    await kit.ledger.commit_model_call(attempt, "run-1", bad)
    assert await kit.ledger.find_model_call(attempt, 1) is None, "nothing decided yet"
    good = ModelCall(step=1, parse_attempt=2, policy_kind="model", actions=["WAIT"], terminal_action="DONE")
    await kit.ledger.commit_model_call(attempt, "run-1", good)
    found = await kit.ledger.model_call(attempt, 1)
    assert (found.parse_attempt, found.actions, found.terminal_action) == (2, ["WAIT"], "DONE")


async def test_a_policy_stop_decides_a_step(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    stop = ModelCall(step=1, policy_kind="model", accepted=False, policy_stop_reason="model_response_empty")
    await kit.ledger.commit_model_call(ref(key, 1), "run-1", stop)
    assert (await kit.ledger.model_call(ref(key, 1), 1)).policy_stop_reason == "model_response_empty"


async def test_turns(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    attempt = ref(key, 1)
    await kit.ledger.commit_model_call(attempt, "run-1", ModelCall(step=1, policy_kind="noop", actions=["WAIT"]))
    seen = Observation(screenshot=artifact("s"), accessibility_tree=artifact("a"))
    actions = [{"status": "in_doubt"}, {"status": "raised", "error": "x\x00y"}, {"status": "ok"}]
    values: dict[str, Any] = {"step": 1, "observation": seen, "actions": actions}
    first = await kit.ledger.commit_turn(attempt, "run-1", **values, started_at=9e9)
    assert first.observation == seen
    assert first.actions[1]["error"] == "x\N{REPLACEMENT CHARACTER}y"
    other = await kit.ledger.commit_turn(
        attempt, "run-1", step=1, observation=Observation(screenshot=artifact("z")), actions=[], started_at=0.0
    )
    assert other == first
    (row,) = await rows(kit.ledger, "SELECT * FROM turn WHERE rollout_key = :key", key=key)
    assert (row["in_doubt"], row["raised"]) == (1, 1)
    assert row["started_at"] <= row["ended_at"], "a worker's clock ahead of the database's is held to it"
    assert await kit.ledger.turn(attempt, 2) is None
    assert await kit.ledger.latest_observation(key) == seen


async def test_the_first_evaluation_counts(kit: Kit) -> None:
    key = (await kit.keys())[0]
    claim = await kit.claim(key)
    attempt = ref(key, 1)
    assert await kit.ledger.evaluation(attempt) is None
    first = Evaluation(
        completed=True,
        score=0.75,
        score_type="float",
        task_digest=claim.task_digest,
        evaluator_revision="1.0.2",
        numpy_version="1.26.4",
        isolation="bubblewrap",
        exchanges={"requests": 3},
        log=artifact("log"),
        duration_s=1.5,
    )
    assert await kit.ledger.commit_evaluation(attempt, "run-1", first) == first
    other = Evaluation(completed=False, reason=Infra.EVALUATOR_ERROR, task_digest=claim.task_digest)
    assert await kit.ledger.commit_evaluation(attempt, "run-1", other) == first
    assert await kit.ledger.evaluation(attempt) == first


async def test_another_task_version_cannot_be_scored(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    with pytest.raises(LedgerError, match="another version of the task"):
        await kit.ledger.commit_evaluation(
            ref(key, 1), "run-1", Evaluation(completed=True, score=1.0, task_digest="0" * 64, **ORIGIN)
        )


async def test_nothing_is_added_after_the_end(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    await kit.end(key, 1, "run-1", infrastructure_failure_reason="timeout")
    for call in (kit.step(key, 1, "run-1", 0), kit.step(key, 1, "run-1", 1), kit.evaluate(key, 1, "run-1", 1.0)):
        with pytest.raises(Fenced):
            await call


async def test_numbers_that_are_none_never_reach_the_database(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    for score in (math.nan, math.inf, 2.0, True):
        with pytest.raises(ValidationError, match="score"):
            await kit.evaluate(key, 1, "run-1", score)
    with pytest.raises(ValueError, match="nan"):
        await kit.ledger.commit_turn(
            ref(key, 1),
            "run-1",
            step=1,
            observation=Observation(screenshot=artifact("s")),
            actions=[{"duration_s": math.nan}],
            started_at=0.0,
        )
