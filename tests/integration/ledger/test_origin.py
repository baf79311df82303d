"""Origin of a score: the contract's image and evaluator, with log and exchange record; and evidence of the phases."""

from datetime import UTC, datetime
from typing import Any

import pytest

from models.batch import RegisterBatch
from models.contract import Resolved
from models.episode import DesktopRef
from rollbook.errors import LedgerConflict
from rollbook.ledger import Phase
from rollbook.ledger.records import Evaluation
from tests.support.ledger import DEPLOYMENT, NAMESPACE, ORIGIN, Kit, behind_the_guards, ref, rows, spec_of

DIGEST = "sha256:contract"
RESOLVED = Resolved(desktop_image="image@1", desktop_digest=DIGEST, evaluator_revision="1.0.2")


async def claimed(kit: Kit, image_digest: str) -> str:
    """An open attempt of a batch with a desktop digest, whose desktop was made from an image."""
    request = RegisterBatch(batch_id=kit.batch_id, namespace=NAMESPACE, spec=spec_of(), launch_id="l-1")
    await kit.ledger.register_batch(
        request, deployment_id=DEPLOYMENT, resolved=RESOLVED, notice="the image has no manifest"
    )
    key = (await kit.planned())[0]
    await kit.claim(key)
    attempt = ref(key, 1)
    await kit.ledger.sandbox_intent(
        attempt, "run-1", sandbox_key=f"s-{kit.batch_id}", deployment_id=DEPLOYMENT, provider="docker", lease_s=60.0
    )
    desktop = DesktopRef(
        provider="docker",
        sandbox_id="id",
        sandbox_key=f"s-{kit.batch_id}",
        nonce="n",
        image_digest=image_digest,
        view_url="",
    )
    await kit.ledger.sandbox_started(attempt, "run-1", desktop, lease_s=60.0)
    return key


async def test_an_attempt_on_another_image_is_never_admitted(kit: Kit) -> None:
    key = await claimed(kit, "sha256:another")
    await kit.evaluate(key, 1, "run-1", 1.0)
    with pytest.raises(LedgerConflict, match="attempt 1 did not run on the contract's image"):
        await kit.end(key, 1, "run-1")
    assert not (await kit.end(key, 1, "run-1", infrastructure_failure_reason="sandbox_start_failed")).admitted


async def test_audit_finds_an_image_that_was_exchanged(kit: Kit) -> None:
    key = await claimed(kit, DIGEST)
    await kit.evaluate(key, 1, "run-1", 1.0)
    assert (await kit.end(key, 1, "run-1")).admitted
    await kit.ledger.sandbox_stopped(f"s-{kit.batch_id}", "the attempt ended")
    change = "UPDATE sandbox SET image_digest = 'sha256:another' WHERE rollout_key = :key"
    assert await behind_the_guards(kit.ledger, change, key=key) == 1
    found = {finding.kind: finding.detail for finding in (await kit.ledger.audit(kit.batch_id)).findings}
    assert found["origin"].startswith("attempt 1 ran on image sha256:another, evaluator 1.0.2; the contract has ")


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"evaluator_revision": "2.0"}, "evaluator revision 2.0 is not the contract's, 1.0.2"),
        ({"evaluator_revision": None}, "evaluation_origin"),
        ({"numpy_version": None}, "a score comes with its numpy version, log and exchange record"),
        ({"exchanges": None}, "a score comes with"),
        ({"log": None}, "a score comes with"),
    ],
)
async def test_a_score_without_its_origin_is_refused(kit: Kit, change: dict[str, Any], refusal: str) -> None:
    key = await claimed(kit, DIGEST)
    context = await kit.ledger.attempt_context(ref(key, 1), "run-1")
    scored = Evaluation(completed=True, score=1.0, task_digest=context.task_digest, **(ORIGIN | change))
    with pytest.raises(LedgerConflict, match=refusal):
        await kit.ledger.commit_evaluation(ref(key, 1), "run-1", scored)


async def test_phases_are_kept_once_per_try_failed_ones_too(kit: Kit) -> None:
    key = await claimed(kit, DIGEST)
    failure = {"method": "POST", "path": "/execute", "status": 500}
    for token in ("first", "first", "second"):
        phase = Phase(
            phase="setup",
            token=token,
            ok=False,
            detail="NoSuchProgram: gimp",
            exchanges={"by_port": {"5000": {"ok": 3}}, "failures": [failure]},
            pressure={"cpu": 12.5},
            started_at=datetime.now(UTC),
        )
        await kit.ledger.record_phase(ref(key, 1), "run-1", phase)
    query = """SELECT detail, exchanges -> 'failures' -> 0 ->> 'path' AS path, (pressure ->> 'cpu')::float AS cpu
        FROM phases WHERE rollout_key = :key"""
    seen = [tuple(row.values()) for row in await rows(kit.ledger, query, key=key)]
    assert seen == [("NoSuchProgram: gimp", "/execute", 12.5)] * 2


@pytest.mark.parametrize(("text", "kept"), [('{"programs": []}', True), ("[]", False), ("{", False), (None, False)])
async def test_only_a_json_object_is_a_manifest(kit: Kit, text: str | None, kept: bool) -> None:
    digest = f"sha256:{kit.batch_id}{text!r}"
    await kit.ledger.record_image(digest, "docker", "image:1", text)
    assert (await kit.ledger.image_manifest(digest) is not None) is kept


async def test_a_launch_keeps_its_notice(kit: Kit) -> None:
    """A lost reply and a run that continues as new ask again; the batch's details show the notice all the same."""
    request = RegisterBatch(batch_id=kit.batch_id, namespace=NAMESPACE, spec=spec_of(), launch_id="l-1")
    assert await kit.ledger.registered_launch(request) is None
    await claimed(kit, DIGEST)
    done = await kit.ledger.registered_launch(request)
    assert done is not None
    assert (done.added, done.notice) == (0, "the image has no manifest")
    assert await kit.ledger.registered_launch(request.model_copy(update={"launch_id": "l-2"})) is None
