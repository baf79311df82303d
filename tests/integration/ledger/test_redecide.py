"""A batch decided anew under a named policy; training decisions."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from models.admission import AdmissionDecision, Scope
from models.episode import FinalizeRequest, Observation
from rollbook.cli import main
from rollbook.errors import InvalidInput
from rollbook.ledger import ModelCall
from rollbook.ledger.admission import PolicyToReapply
from tests.support.ledger import Kit, artifact, facts, ref, rows

DOUBT, RUNTIME = "exclude-in-doubt-v1", "osworld-runtime-admission-v1"
TRAINING, EXACT = "rollbook-training-admission-v1", "rollbook-exact-training-admission-v1"
ONE_TASK: dict[str, Any] = {"tasks": {"ids": ["task-000"]}}


def rule(policy_id: str, **changes: Any) -> PolicyToReapply:
    return PolicyToReapply(policy_id, "the paper's rule", "ann", **changes)


def trainers(event: str | None = None) -> dict[str, Any]:
    """One task whose identity a trainer gave."""
    identity = {"sampling_event_id": event or f"sampling-{uuid.uuid4().hex}", "source_group_id": "g"}
    return ONE_TASK | {"identity": identity}


async def in_doubt(kit: Kit, key: str, score: float = 1.0) -> FinalizeRequest:
    """An episode in which one action may or may not have happened."""
    claimed = await kit.claim(key)
    attempt = ref(key, claimed.attempt_index)
    await kit.step(key, claimed.attempt_index, "run-1", 0)
    done = ModelCall(step=1, policy_kind="noop", actions=["WAIT", "WAIT"], terminal_action="DONE")
    await kit.ledger.commit_model_call(attempt, "run-1", done)
    await kit.ledger.commit_turn(
        attempt,
        "run-1",
        step=1,
        observation=Observation(screenshot=artifact(key)),
        actions=[{"status": "ok"}, {"status": "in_doubt"}],
        started_at=1_700_000_000.0,
    )
    await kit.evaluate(key, claimed.attempt_index, "run-1", score)
    request = FinalizeRequest(attempt=attempt, facts=facts(), steps=1)
    await kit.ledger.finalize(request, "run-1")
    return request


async def results(kit: Kit) -> list[Any]:
    """Everything that a decision must not touch."""
    query = """
        SELECT outcome.*, actions FROM rollout JOIN outcome USING (rollout_key)
        LEFT JOIN turn USING (rollout_key, attempt_index) WHERE batch_id = :b ORDER BY 1, 2, step
    """
    return await rows(kit.ledger, query, b=kit.batch_id)


async def admitted(kit: Kit) -> dict[str, tuple[bool, str]]:
    query = "SELECT rollout_key, admitted, admission_reason FROM rollout_result WHERE batch_id = :b AND state = 'final'"
    return {
        row["rollout_key"]: (row["admitted"], row["admission_reason"])
        for row in await rows(kit.ledger, query, b=kit.batch_id)
    }


async def test_a_stricter_policy_over_a_whole_batch(kit: Kit) -> None:
    keys = await kit.keys()
    await kit.run(keys[0])
    request = await in_doubt(kit, keys[1])
    await kit.claim(keys[2])
    await kit.end(keys[2], 1, "run-1", infrastructure_failure_reason="timeout")
    before = await results(kit)
    looked = await kit.ledger.reapply_policy(kit.batch_id, rule(DOUBT), dry_run=True)
    assert (looked.admitted, looked.masked, looked.flips) == (1, 2, 1)
    assert (await kit.ledger.counts(kit.batch_id)).admitted == 2, "a dry run decides nothing"
    done = await kit.ledger.reapply_policy(kit.batch_id, rule(DOUBT), chunk=2)
    assert (done.admitted, done.masked, done.flips) == (1, 2, 1)
    assert done.flipped == [f"{keys[1]}: action_in_doubt"]
    assert await admitted(kit) == {
        keys[0]: (True, "valid_evaluated_outcome"),
        keys[1]: (False, "action_in_doubt"),
        keys[2]: (False, "timeout"),
    }
    again = await kit.ledger.reapply_policy(kit.batch_id, rule(DOUBT))
    assert (again.unchanged, again.admitted, again.masked) == (3, 0, 0)
    finalized = await kit.ledger.finalize(request, "run-1")  # the completion is delivered once more
    assert (finalized.admitted, finalized.score) == (True, 1.0)
    assert (await admitted(kit))[keys[1]] == (False, "action_in_doubt"), "the decision survives it"
    assert await results(kit) == before
    back = await kit.ledger.reapply_policy(kit.batch_id, rule(RUNTIME))
    assert (back.admitted, back.masked, back.flips) == (2, 1, 1)
    query = """
        SELECT decision_index, admitted, policy_id, decided_by, evidence FROM admission
        WHERE rollout_key = :key ORDER BY decision_index
    """
    found = await rows(kit.ledger, query, key=keys[1])
    assert [(row["admitted"], row["policy_id"]) for row in found] == [(True, RUNTIME), (False, DOUBT), (True, RUNTIME)]
    assert found[1]["evidence"] == {
        "because": "the paper's rule",
        "in_doubt": 1,
        "replies": 1,
        "replies_without_tokens": 1,
    }
    assert await results(kit) == before
    report = await kit.clean()
    assert sum(notice.kind == "redecided" for notice in report.notices) == 6


async def test_what_a_person_decided_stays(kit: Kit) -> None:
    keys = await kit.keys()
    await kit.run(keys[0])
    await kit.run(keys[1])
    by_hand = AdmissionDecision(policy_id="rollbook-manual-v1", admitted=False, reason="a popup")
    await kit.ledger.decide_admission(keys[0], by_hand, decided_by="bob")
    done = await kit.ledger.reapply_policy(kit.batch_id, rule(DOUBT))
    assert (done.admitted, done.kept_by_hand) == (1, 1)
    assert (await admitted(kit))[keys[0]] == (False, "a popup")
    done = await kit.ledger.reapply_policy(kit.batch_id, rule(DOUBT, override_manual=True))
    assert (done.admitted, done.unchanged, done.kept_by_hand, done.flips) == (1, 1, 0, 1)
    assert (await admitted(kit))[keys[0]][0]
    await kit.clean()


async def test_wrong_requests_say_why(kit: Kit) -> None:
    await kit.register()
    with pytest.raises(InvalidInput, match=r"no policy 'strict'; there is .*exclude-in-doubt-v1 \(runtime"):
        await kit.ledger.reapply_policy(kit.batch_id, rule("strict"))
    with pytest.raises(InvalidInput, match="reason: give a reason"):
        await kit.ledger.reapply_policy(kit.batch_id, PolicyToReapply(DOUBT, " ", "ann"))
    with pytest.raises(InvalidInput, match="no batch 'nobody'"):
        await kit.ledger.reapply_policy("nobody", rule(DOUBT))


async def training(kit: Kit) -> dict[int, tuple[bool, bool, str]]:
    query = "SELECT sample, trainable, training_admitted, training_reason FROM training_rows WHERE batch_id = :b"
    return {
        row["sample"]: (row["trainable"], row["training_admitted"], row["training_reason"])
        for row in await rows(kit.ledger, query, b=kit.batch_id)
    }


async def test_a_derived_identity_is_never_trained_on(kit: Kit) -> None:
    keys = await kit.keys(**ONE_TASK)
    await kit.run(keys[0])
    refused = (False, False, "caller_owned_rollout_identity_unavailable")
    assert await training(kit) == {0: refused}
    done = await kit.ledger.reapply_policy(kit.batch_id, rule(TRAINING))
    assert (done.admitted, done.masked, done.scope) == (0, 1, Scope.TRAINING)
    assert await training(kit) == {0: refused}
    await kit.clean()


async def test_training_is_decided_with_the_end_and_follows_the_mask(kit: Kit) -> None:
    keys = await kit.keys(samples=3, purpose="train", **trainers())
    await kit.run(keys[0])
    await kit.claim(keys[1])
    await kit.end(keys[1], 1, "run-1", infrastructure_failure_reason="timeout")
    request = await in_doubt(kit, keys[2])
    valid, masked = (True, True, "valid_training_sample"), (False, False, "rollout_sample_masked")
    assert await training(kit) == {0: valid, 1: masked, 2: valid}
    assert (await kit.clean()).notices == [n for n in (await kit.clean()).notices if n.kind == "in_doubt"]
    await kit.ledger.reapply_policy(kit.batch_id, rule(DOUBT))
    assert (await training(kit))[2] == (False, True, "valid_training_sample"), "masked now, so not trainable"
    await kit.ledger.reapply_policy(kit.batch_id, rule(TRAINING))
    assert (await training(kit))[2] == masked
    await kit.ledger.finalize(request, "run-1")
    assert (await training(kit))[2] == masked, "a replayed completion decides nothing anew"
    done = await kit.ledger.reapply_policy(kit.batch_id, rule(EXACT))
    assert (done.admitted, done.masked) == (0, 3), "none of the replies has tokens"
    assert (await training(kit))[0] == (False, False, "exact_sampled_token_ids_unavailable")
    await kit.clean()


async def test_the_command(
    kit: Kit,
    ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROLLBOOK_DATABASE_URL", ledger_url)
    monkeypatch.setenv("ROLLBOOK_STATE_DIR", str(tmp_path))
    keys = await kit.keys()
    await kit.run(keys[0])
    await in_doubt(kit, keys[1])

    async def run(*arguments: str) -> tuple[int, str]:
        command = ["redecide", kit.batch_id, "--policy-id", *arguments]
        code = await asyncio.to_thread(main.run, command)
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    code, said = await run(DOUBT, "--reason", "the paper's rule", "--dry-run")
    assert (code, "2 rollouts would be decided by exclude-in-doubt-v1 (runtime)" in said) == (0, True)
    code, said = await run(DOUBT, "--reason", "the paper's rule", "--json")
    assert (code, json.loads(said)["flipped"]) == (0, [f"{keys[1]}: action_in_doubt"])
    code, said = await run(DOUBT, "--reason", "the paper's rule")
    assert (code, "2 left alone: decided so before" in said) == (0, True)
    code, said = await run("nobodys", "--reason", "x")
    assert (code, "policy_id: no policy 'nobodys'; there is osworld-runtime-admission-v1 (runtime: " in said) == (
        2,
        True,
    )
    assert (await run(DOUBT, "--reason", " "))[0] == 2
    assert (await admitted(kit))[keys[1]] == (False, "action_in_doubt")
