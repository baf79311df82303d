"""One process of competing writers: `python -m bench.writer URL BATCH ROLLOUTS WRITERS PROCESS OF`.

Each writer plays episodes by the ledger's own calls (claim, one observation and model call, evaluation, finalize).
Every twentieth rollout is played by two runs at once: one of them is fenced or finds it final, and the roll call must
come out the same.
"""

import asyncio
import contextlib
import sys
import uuid
from collections.abc import Iterable

from sqlalchemy import text

from models.episode import AttemptRef, FinalizeRequest, Observation
from models.evidence import ArtifactRef
from models.outcome import OutcomeFacts
from rollbook.errors import Fenced
from rollbook.ledger import Evaluation, Ledger, ModelCall

CONTESTED = 20
"""One rollout in this many is claimed by two runs."""
SEEN = ArtifactRef(sha256="0" * 64, size_bytes=1, media_type="image/png")
DONE = OutcomeFacts(evaluation_completed=True, terminal_action="DONE")


async def play(ledger: Ledger, key: str, number: int) -> None:
    """One episode that ends with its first answer, scored 1 or 0 in turn."""
    run_id = uuid.uuid4().hex
    claim = await ledger.claim(key, run_id, key, 1)
    if claim.status != "claimed":
        return
    attempt = AttemptRef(rollout_key=key, attempt_index=claim.attempt_index)
    await ledger.commit_turn(
        attempt, run_id, step=0, observation=Observation(screenshot=SEEN), actions=[], started_at=0.0
    )
    answer = ModelCall(step=1, policy_kind="noop", terminal_action="DONE")
    await ledger.commit_model_call(attempt, run_id, answer)
    scored = Evaluation(
        completed=True, score=float(number % 2), task_digest=claim.task_digest, evaluator_revision="bench"
    )
    await ledger.commit_evaluation(attempt, run_id, scored)
    await ledger.finalize(FinalizeRequest(attempt=attempt, facts=DONE, steps=1), run_id)


async def _write(ledger: Ledger, rows: Iterable[tuple[int, str]]) -> None:
    for number, key in rows:
        with contextlib.suppress(Fenced):  # the other run of a contested rollout was quicker
            await play(ledger, key, number)


async def _main(url: str, batch_id: str, rollouts: int, writers: int, process: int, of: int) -> None:
    ledger = Ledger.connect(url, pool_size=writers)
    query = text(
        "SELECT plan_order, rollout_key FROM rollout WHERE batch_id = :batch_id AND plan_order < :rollouts"
        " ORDER BY plan_order"
    )
    async with ledger.engine.connect() as connection:
        found = await connection.execute(query, {"batch_id": batch_id, "rollouts": rollouts})
        rows = [(int(number), str(key)) for number, key in found]
    total = writers * of
    shares = [
        [row for row in rows if row[0] % total == mine or (row[0] % CONTESTED == 0 and (row[0] + 1) % total == mine)]
        for mine in range(process * writers, (process + 1) * writers)
    ]
    await asyncio.gather(*(_write(ledger, share) for share in shares))
    await ledger.aclose()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], *(int(value) for value in sys.argv[3:7])))
