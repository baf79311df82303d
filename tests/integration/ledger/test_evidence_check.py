"""Outcomes without supporting evidence: masked with a reason by finalize, refused from every other writer."""

from typing import Any

import pytest

from models.episode import Finalized, FinalizeRequest
from models.outcome import OutcomeFacts
from rollbook.errors import LedgerConflict
from rollbook.ledger import Ledger, ModelCall
from tests.support.hostile import attack, ending
from tests.support.ledger import Kit, artifact, behind_the_guards, facts, ref, rows


async def finalize(kit: Kit, key: str, steps: int, said: OutcomeFacts | None = None) -> Finalized:
    request = FinalizeRequest(attempt=ref(key, 1), facts=said or facts(), steps=steps)
    return await kit.ledger.finalize(request, "run-1")


async def decided(kit: Kit, key: str, *, steps: int = 2, turns: tuple[int, ...] = (0, 1)) -> None:
    """Calls up to a DONE in the last step, which acts no more; turns as given; a full score."""
    await kit.claim(key)
    for step in range(1, steps + 1):
        last: dict[str, Any] = {"terminal_action": "DONE"} if step == steps else {"actions": ["WAIT"]}
        await kit.ledger.commit_model_call(ref(key, 1), "run-1", ModelCall(step=step, policy_kind="noop", **last))
    for step in turns:
        await kit._turn(ref(key, 1), "run-1", step)
    await kit.evaluate(key, 1, "run-1", 1.0)


@pytest.mark.parametrize(
    ("turns", "steps", "said", "reason", "recorded"),
    [
        ((0, 1), 2, facts(), None, 2),
        ((0,), 2, facts(), "1 of 2 observations are there", 2),
        ((), 2, facts(), "0 of 2 observations are there", 2),
        ((0, 2), 2, facts(), "2 of 2 observations are there", 2),
        ((0, 1), 1, facts(), "the last model call decided step 2: DONE", 1),
        ((0, 1), 999, facts(), "the last model call decided step 2: DONE", 2),
        ((0, 1), 2, facts(terminal_action="FAIL"), "the last model call decided step 2: DONE", 2),
        ((0, 1), 2, facts(horizon_reached=True), "the last model call decided step 2: DONE", 2),
        ((0, 1), 0, facts(environment_done=True), "the last model call decided step 2: DONE", 1),
    ],
)
async def test_an_end_is_counted_if_the_evidence_bears_it_out(
    kit: Kit, turns: tuple[int, ...], steps: int, said: OutcomeFacts, reason: str | None, recorded: int
) -> None:
    key = (await kit.keys())[0]
    await decided(kit, key, turns=turns)
    end = await finalize(kit, key, steps, said)
    (row,) = await kit.outcomes(key)
    assert (end.admitted, end.another_attempt, row["steps"], row["score"]) == (reason is None, False, recorded, 1.0)
    if reason is not None:
        assert end.termination_reason == "rollout_error"
        assert reason in row["detail"]
    assert await finalize(kit, key, steps, said) == end, "a repeat gets the same answer"
    with pytest.raises(LedgerConflict, match="ended already, with other facts"):
        await finalize(kit, key, steps, facts(infrastructure_failure_reason="timeout"))
    await kit.clean()


@pytest.mark.parametrize(("steps", "recorded"), [(0, 1), (1, 1), (2, 2), (999, 2)])
async def test_a_failure_keeps_its_reason_and_gets_the_steps_that_there_were(
    kit: Kit, steps: int, recorded: int
) -> None:
    key = (await kit.keys())[0]
    await decided(kit, key)
    end = await finalize(kit, key, steps, facts(infrastructure_failure_reason="timeout"))
    (row,) = await kit.outcomes(key)
    assert (end.termination_reason, row["steps"], row["detail"] == "") == ("timeout", recorded, steps == recorded)
    await kit.clean()


@pytest.mark.parametrize(
    ("turns", "changes", "refusal"),
    [
        ((0,), {}, "1 of 2 observations"),
        ((), {}, "0 of 2 observations"),
        ((0, 2), {}, "2 of 2 observations"),
        ((0, 1), {"turns": "3"}, "has 2 turns, 2 model calls and 1 evaluations"),
    ],
)
async def test_nobody_else_ends_it_as_eligible(
    kit: Kit, ledger: Ledger, worker: Ledger, turns: tuple[int, ...], changes: dict[str, str], refusal: str
) -> None:
    key = (await kit.keys())[0]
    await decided(kit, key, turns=turns)
    said = ending(key, steps="2", score="1", reward="1", **changes)
    assert refusal in await attack(worker, *said)
    for statement in said:
        await behind_the_guards(ledger, statement)
    assert {"facts", "evidence"} & {finding.kind for finding in (await ledger.audit(kit.batch_id)).findings}


async def test_an_end_of_before_revision_0007_repeats_and_is_told_not_found(kit: Kit, ledger: Ledger) -> None:
    """Then a failure after the evaluation had no score: honest, and never a finding."""
    key = (await kit.keys())[0]
    await decided(kit, key)
    said = facts(infrastructure_failure_reason="cancelled")
    await finalize(kit, key, 2, said)
    change = "UPDATE outcome SET evaluation_completed = false, score = NULL, reward = NULL WHERE rollout_key = :key"
    await behind_the_guards(ledger, change, key=key)
    await behind_the_guards(ledger, "UPDATE outcome AS r SET row_digest = seal(r) WHERE rollout_key = :key", key=key)
    assert (await finalize(kit, key, 2, said)).score is None
    report = await kit.clean()
    assert [notice.kind for notice in report.notices] == ["evaluated_then_closed"]
    query = "SELECT evaluated_then_closed FROM scoreboard WHERE batch_id = :b AND domain = '(all)'"
    assert await rows(ledger, query, b=kit.batch_id) == [{"evaluated_then_closed": 1}]


TURN = """
    INSERT INTO turn (rollout_key, attempt_index, step, screenshot_sha256, actions, in_doubt, raised, started_at,
        row_digest)
    SELECT '{key}', 1, {step}, '{sha256}', '{actions}', {in_doubt}, {raised}, now(), ''
"""


@pytest.mark.parametrize(
    ("step", "actions", "in_doubt", "raised", "refusal"),
    [
        (7, "[]", 0, 0, "no model call decided step 7"),
        (2, '[{"status": "in_doubt"}]', 0, 0, "counted from its actions"),
        (2, '[{"status": "ok"}]', 1, 0, "counted from its actions"),
        (2, '[{"status": "raised"}, {"status": "raised"}]', 0, 1, "counted from its actions"),
        (2, "{}", 0, 0, "turn_actions"),
    ],
)
async def test_turns_that_nobody_took(
    kit: Kit, ledger: Ledger, worker: Ledger, step: int, actions: str, in_doubt: int, raised: int, refusal: str
) -> None:
    key = (await kit.keys())[0]
    await decided(kit, key)
    said = TURN.format(
        key=key, step=step, sha256=artifact(f"{key}/0").sha256, actions=actions, in_doubt=in_doubt, raised=raised
    )
    assert refusal in await attack(worker, said)
    if refusal == "counted from its actions":
        await behind_the_guards(ledger, said)
        assert "turn_counts" in {finding.kind for finding in (await ledger.audit(kit.batch_id)).findings}
