"""Ends from outside, reruns, decisions after the fact, reconciliation: every row ends in a correct state."""

import asyncio

import pytest

from models.admission import AdmissionDecision, Scope
from models.episode import DesktopRef
from rollbook.errors import Fenced, InvalidInput, SandboxLost
from tests.support.ledger import DEPLOYMENT, NAMESPACE, Kit, behind_the_guards, ref, rows


async def test_cancel_closes_every_row_and_keeps_what_was_admitted(kit: Kit) -> None:
    keys = await kit.keys(samples=2)
    await kit.run(keys[0])  # admitted
    await kit.claim(keys[1], "run-1")  # open
    await kit.claim(keys[2], "run-1")  # between attempts
    await kit.end(keys[2], 1, "run-1", infrastructure_failure_reason="sandbox_lost")
    await kit.ledger.mark_queued([keys[3]])
    await kit.run(keys[4])
    await kit.ledger.request_rerun(kit.batch_id, [keys[4]], reason="wrong image", requested_by="ann", supersede=True)
    assert await kit.ledger.close_open(kit.batch_id, "enough", chunk=5) == 11
    assert await kit.ledger.close_open(kit.batch_id, "enough") == 0
    counts = await kit.ledger.counts(kit.batch_id)
    assert (counts.admitted, counts.masked, counts.waiting, counts.running) == (2, 10, 0, 0)
    assert (await kit.row(keys[4]))["selected_attempt"] == 1, "never a masked attempt over an admitted one"
    assert [end["termination_reason"] for end in await kit.outcomes(keys[2])] == ["sandbox_lost", "cancelled"]
    with pytest.raises(Fenced):
        await kit.end(keys[1], 1, "run-1")
    (made,) = await rows(kit.ledger, "SELECT * FROM attempt WHERE rollout_key = :key", key=keys[5])
    assert made["run_id"].startswith("closed-")
    assert (await kit.clean()).ok
    assert (await kit.ledger.batch_control(kit.batch_id)).closed_at is not None


async def test_claims_that_race_a_cancel_end_closed(kit: Kit) -> None:
    keys = await kit.keys(samples=5)

    async def claim(key: str) -> str:
        return (await kit.claim(key, f"run-{key}")).status

    claims = [asyncio.create_task(claim(key)) for key in keys]
    await kit.ledger.close_open(kit.batch_id, "now", chunk=7)
    assert set(await asyncio.gather(*claims)) <= {"claimed", "stopping", "final"}
    await kit.ledger.close_open(kit.batch_id, "now")
    assert (await kit.clean()).ok


async def test_rerun_of_masked_rows_counts_the_budget_anew(kit: Kit) -> None:
    keys = await kit.keys(max_attempts=1)
    await kit.run(keys[0])
    for key in keys[1:3]:
        await kit.claim(key)
        await kit.end(key, 1, "run-1", infrastructure_failure_reason="sandbox_lost")
    asked = await kit.ledger.request_rerun(kit.batch_id, "masked", reason="hosts mended", requested_by="ann")
    assert asked == sorted(keys[1:3])
    assert (await kit.row(keys[1]))["state"] == "waiting"
    assert (await kit.run(keys[1], "run-2")).selected
    assert (await kit.row(keys[1]))["selected_attempt"] == 2
    await kit.claim(keys[2], "run-2")
    assert not (await kit.end(keys[2], 2, "run-2", infrastructure_failure_reason="sandbox_lost")).another_attempt
    await kit.clean()


async def test_selectors(kit: Kit) -> None:
    keys = await kit.keys()
    await kit.run(keys[0])
    await kit.claim(keys[1])
    await kit.end(keys[1], 1, "run-1", infrastructure_failure_reason="timeout")
    await kit.claim(keys[2])
    await kit.end(keys[2], 1, "run-1", evaluation_completed=False)
    await kit.ledger.close_open(kit.batch_id, "enough")
    failed = await kit.ledger.request_rerun(kit.batch_id, "failed", reason="r", requested_by="ann")
    assert failed == [keys[1]]
    masked = await kit.ledger.request_rerun(kit.batch_id, "masked", reason="r", requested_by="ann")
    assert masked == sorted(keys[2:])
    assert await kit.ledger.request_rerun(kit.batch_id, "masked", reason="r", requested_by="ann") == []


async def test_an_admitted_rollout_runs_again_only_on_record(kit: Kit) -> None:
    keys = await kit.keys()
    await kit.run(keys[0], score=0.0)
    ask = kit.ledger.request_rerun
    for which in ("all", [keys[0]]):
        with pytest.raises(InvalidInput, match="best of several attempts"):
            await ask(kit.batch_id, which, reason="hope", requested_by="ann")
    with pytest.raises(InvalidInput, match="reason"):
        await ask(kit.batch_id, "all", reason=" ", requested_by="ann", supersede=True)
    with pytest.raises(InvalidInput, match="is waiting; only a final one"):
        await ask(kit.batch_id, [keys[1]], reason="hope", requested_by="ann")
    with pytest.raises(InvalidInput, match="is not in batch"):
        await ask(kit.batch_id, ["x/y/z/0"], reason="hope", requested_by="ann")
    assert await ask(kit.batch_id, "all", reason="wrong image", requested_by="ann", supersede=True) == [keys[0]]
    await kit.run(keys[0], "run-2", score=1.0)
    assert (await kit.row(keys[0]))["selected_attempt"] == 2
    report = await kit.clean()
    assert [(notice.kind, notice.subject) for notice in report.notices] == [
        ("superseded", keys[0]),
        ("further_attempt", keys[0]),
    ]
    (total,) = await rows(
        kit.ledger, "SELECT * FROM scoreboard WHERE batch_id = :b AND domain = '(all)'", b=kit.batch_id
    )
    assert (total["superseded"], total["reruns"]) == (1, 1)


async def test_a_masked_rerun_never_replaces_an_admitted_result(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.run(key, score=0.5)
    await kit.ledger.request_rerun(kit.batch_id, [key], reason="r", requested_by="ann", supersede=True)
    await kit.claim(key, "run-2")
    done = await kit.end(key, 2, "run-2", infrastructure_failure_reason="timeout")
    assert not done.selected
    assert (await kit.row(key))["selected_attempt"] == 1
    await kit.clean()


def mask(reason: str = "popup covered the screen", scope: Scope = Scope.RUNTIME) -> AdmissionDecision:
    return AdmissionDecision(scope=scope, policy_id="manual", admitted=False, reason=reason)


def admit(scope: Scope = Scope.RUNTIME) -> AdmissionDecision:
    return AdmissionDecision(scope=scope, policy_id="manual", admitted=True, reason="looked at it")


async def test_decisions_are_appended_and_change_no_fact(kit: Kit) -> None:
    key = (await kit.keys())[0]
    first = await kit.run(key, "run-1", score=0.5)
    before = await kit.outcomes(key)
    await kit.ledger.decide_admission(key, mask(), decided_by="ann", evidence={"looked_at": "step 3"})
    assert (await kit.ledger.counts(kit.batch_id)).masked == 1
    assert await kit.end(key, 1, "run-1", steps=2) == first, "a replayed completion changes nothing"
    assert (await kit.ledger.counts(kit.batch_id)).masked == 1
    await kit.ledger.decide_admission(key, admit(), decided_by="bob")
    assert (await kit.ledger.counts(kit.batch_id)).admitted == 1
    assert await kit.outcomes(key) == before
    query = "SELECT decision_index, admitted, decided_by FROM admission WHERE rollout_key = :key ORDER BY 1"
    said = [tuple(row.values()) for row in await rows(kit.ledger, query, key=key)]
    assert said == [(1, True, "episode"), (2, False, "ann"), (3, True, "bob")]
    assert len((await kit.clean()).notices) == 2


async def test_racing_decisions_are_counted_one_by_one(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.run(key)
    await asyncio.gather(*(kit.ledger.decide_admission(key, mask(), decided_by=f"p{n}") for n in range(10)))
    assert (await kit.row(key))["decisions"] == 11
    await kit.clean()


async def test_what_cannot_be_admitted(kit: Kit) -> None:
    keys = await kit.keys()
    with pytest.raises(InvalidInput, match=r"no attempt of .* has ended"):
        await kit.ledger.decide_admission(keys[0], admit(), decided_by="ann")
    await kit.claim(keys[0])
    await kit.end(keys[0], 1, "run-1", infrastructure_failure_reason="timeout")
    with pytest.raises(InvalidInput, match="was not evaluated"):
        await kit.ledger.decide_admission(keys[0], admit(), decided_by="ann")
    await kit.run(keys[1])
    with pytest.raises(InvalidInput, match="derived identity is never trainable"):
        await kit.ledger.decide_admission(keys[1], admit(Scope.TRAINING), decided_by="ann")
    with pytest.raises(InvalidInput, match="reason"):
        await kit.ledger.decide_admission(keys[1], mask(" "), decided_by="ann")
    await kit.ledger.decide_admission(keys[1], mask("not for us", Scope.TRAINING), decided_by="ann")
    assert (await kit.ledger.counts(kit.batch_id)).admitted == 1, "training is another matter than counting"


async def test_reconciliation_fences_then_plans_again(kit: Kit) -> None:
    keys = await kit.keys(max_attempts=2)
    await kit.ledger.mark_queued([keys[1]])
    await kit.claim(keys[0], "gone")
    ledger = kit.ledger
    quiet = [s for s in await ledger.suspects(DEPLOYMENT, NAMESPACE, -1) if s.batch_id == kit.batch_id]
    assert {(s.rollout_key, s.state, s.attempt_index, s.run_id, s.seen) for s in quiet} == {
        (keys[0], "running", 1, "gone", 0),
        (keys[1], "queued", None, "", 0),
    }
    assert await ledger.suspects(DEPLOYMENT, NAMESPACE, 3600) == []
    assert await ledger.suspects("another", NAMESPACE, -1) == []
    assert await ledger.suspects(DEPLOYMENT, "another", -1) == []
    assert [await ledger.count_missing(keys[0], "gone") for _ in range(2)] == [1, 2]
    await ledger.clear_missing(keys[0], "gone")
    assert await ledger.count_missing(keys[0], "gone") == 1
    assert await ledger.close_reconciled(keys[0], 1, "not found twice") == "waiting"
    assert await ledger.close_reconciled(keys[0], 1, "not found twice") is None
    for call in (kit.claim(keys[0], "gone", 2), kit.end(keys[0], 1, "gone"), kit.step(keys[0], 1, "gone", 0)):
        with pytest.raises(Fenced):
            await call
    await kit.claim(keys[0], "gone-too")
    assert await ledger.close_reconciled(keys[0], 2, "not found twice") == "final", "the budget is spent"
    assert await ledger.requeue(keys[1])
    assert not await ledger.requeue(keys[1])
    assert not await ledger.requeue(keys[0])
    await kit.clean()


async def test_requeue_leaves_an_open_attempt_alone(kit: Kit) -> None:
    keys = await kit.keys()
    await kit.claim(keys[0])
    assert not await kit.ledger.requeue(keys[0])
    await kit.end(keys[0], 1, "run-1", infrastructure_failure_reason="sandbox_lost")
    assert await kit.ledger.requeue(keys[0])
    assert (await kit.row(keys[0]))["state"] == "waiting"
    await kit.clean()


def desktop(key: str) -> DesktopRef:
    return DesktopRef(provider="docker", sandbox_id="c-1", sandbox_key=key, nonce="n", view_url="http://127.0.0.1/")


async def test_leases(kit: Kit) -> None:
    key = (await kit.keys())[0]
    ledger, attempt, label = kit.ledger, ref(key, 1), f"label-{kit.batch_id}"
    await kit.claim(key)
    intent = {"sandbox_key": label, "deployment_id": kit.batch_id, "provider": "docker"}
    assert await ledger.sandbox_of(attempt) is None
    with pytest.raises(Fenced):
        await ledger.sandbox_intent(attempt, "run-2", lease_s=60, **intent)
    await ledger.sandbox_intent(attempt, "run-1", lease_s=-1, **intent)
    lease = await ledger.sandbox_of(attempt)
    assert lease is not None
    assert (lease.state, lease.sandbox_id, lease.lease_expired, lease.attempt_open) == ("intended", None, True, True)
    await ledger.sandbox_intent(attempt, "run-1", lease_s=60, **intent)
    await ledger.sandbox_started(attempt, "run-1", desktop(label), lease_s=60)
    await ledger.sandbox_renew(attempt, "run-1", lease_s=120)
    (live,) = await ledger.live_sandboxes(kit.batch_id)
    assert (live.state, live.sandbox_id, live.nonce, live.lease_expired) == ("running", "c-1", "n", False)
    await kit.end(key, 1, "run-1", infrastructure_failure_reason="timeout")
    (live,) = await ledger.live_sandboxes(kit.batch_id)
    assert not live.attempt_open
    assert [notice.kind for notice in (await kit.clean()).notices] == ["live_desktop"]
    assert await ledger.sandbox_stopped(label, "the attempt ended")
    assert not await ledger.sandbox_stopped(label, "the attempt ended")
    assert await ledger.live_sandboxes(kit.batch_id) == []


async def test_a_stopped_desktop_is_lost_to_its_attempt(kit: Kit) -> None:
    key = (await kit.keys())[0]
    attempt, label = ref(key, 1), f"label-{kit.batch_id}"
    await kit.claim(key)
    intent = {"sandbox_key": label, "deployment_id": DEPLOYMENT, "provider": "docker", "lease_s": 60.0}
    await kit.ledger.sandbox_intent(attempt, "run-1", **intent)  # type: ignore[arg-type]
    await kit.ledger.sandbox_stopped(label, "reaped")
    for call in (
        kit.ledger.sandbox_intent(attempt, "run-1", **intent),  # type: ignore[arg-type]
        kit.ledger.sandbox_started(attempt, "run-1", desktop(label), lease_s=60),
        kit.ledger.sandbox_renew(attempt, "run-1", lease_s=60),
    ):
        with pytest.raises(SandboxLost):
            await call


async def test_a_caller_identity_may_be_trained_on(kit: Kit) -> None:
    """Rows whose identity a trainer gave (registered by a later call; here set behind the guards)."""
    key = (await kit.keys())[0]
    await behind_the_guards(
        kit.ledger,
        "UPDATE rollout SET identity_source = 'caller', sampling_event_id = :b, source_group_id = 'g' "
        "WHERE rollout_key = :key",
        key=key,
        b=kit.batch_id,
    )
    await kit.run(key)
    await kit.ledger.decide_admission(key, mask(), decided_by="ann")
    with pytest.raises(InvalidInput, match="is masked; it cannot be trained on"):
        await kit.ledger.decide_admission(key, admit(Scope.TRAINING), decided_by="ann")
    await kit.ledger.decide_admission(key, admit(), decided_by="ann")
    await kit.ledger.decide_admission(key, admit(Scope.TRAINING), decided_by="ann")
    (row,) = await rows(kit.ledger, "SELECT * FROM training_rows WHERE rollout_key = :key", key=key)
    assert (row["trainable"], row["training_admitted"]) == (True, True)
