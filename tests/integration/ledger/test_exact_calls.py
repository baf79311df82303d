"""The columns of exact calls: sealed where they are used, and rows from before keep their seal."""

from typing import Any

import pytest

from models.evidence import ArtifactRef
from rollbook.ledger import Ledger, ModelCall
from tests.support.ledger import Kit, artifact, behind_the_guards, ref, rows

OLD_SEAL = """
    SELECT step, row_digest, encode(sha256(convert_to(ROW(
        r.rollout_key, r.attempt_index, r.step, r.parse_attempt, r.policy_kind, r.actions, r.terminal_action,
        r.policy_stop_reason, r.completed, r.accepted, r.parse_error, r.failure_kind, r.finish_reason, r.summary,
        r.prompt_sha256, r.response_sha256, r.model_name, r.model_version, r.prompt_tokens, r.completion_tokens,
        encode(float8send(r.latency_s), 'hex'), r.telemetry, extract(epoch FROM r.recorded_at)
    )::text, 'UTF8')), 'hex') AS old FROM model_call AS r ORDER BY step
"""


@pytest.fixture
async def two_calls(kit: Kit) -> Kit:
    """An ended attempt with a call as before, and one with everything."""
    [key, *_] = await kit.keys()
    claimed = await kit.claim(key)
    for step in range(2):
        await kit.step(key, claimed.attempt_index, "run-1", step)
    exact = ModelCall(
        step=2,
        policy_kind="openai",
        terminal_action="DONE",
        image=artifact("image"),
        tokens=ArtifactRef(sha256="a" * 64, size_bytes=1, media_type="application/json"),
        said={"content": "hello"},
    )
    await kit.ledger.commit_model_call(ref(key, 1), "run-1", exact)
    await kit.evaluate(key, 1, "run-1", 1.0)
    await kit.end(key, 1, "run-1", steps=2)
    return kit


async def test_rows_without_them_have_the_seal_they_always_had(two_calls: Kit) -> None:
    before, after = await rows(two_calls.ledger, OLD_SEAL)
    assert before["row_digest"] == before["old"]
    assert after["row_digest"] != after["old"]
    await two_calls.clean()


CHANGES = [
    "said = '{}'",
    "said = NULL",
    "tokens_sha256 = NULL",
    "image_sha256 = NULL",
    "image_sha256 = tokens_sha256",
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_them_is_found(two_calls: Kit, change: str) -> None:
    await behind_the_guards(two_calls.ledger, f"UPDATE model_call SET {change} WHERE step = 2")
    assert "row_digest" in await kinds(two_calls.ledger, two_calls.batch_id)


async def test_a_call_that_borrows_them_is_found(two_calls: Kit) -> None:
    await behind_the_guards(two_calls.ledger, """UPDATE model_call SET said = '{"content": "more"}' WHERE step = 1""")
    assert "row_digest" in await kinds(two_calls.ledger, two_calls.batch_id)


async def kinds(ledger: Ledger, batch_id: str) -> set[Any]:
    return {finding.kind for finding in (await ledger.audit(batch_id)).findings}
