"""Races: competing runs, duplicated deliveries, zombies, a cancel and reruns in the middle; the roll call adds up."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from rollbook.errors import Fenced, LedgerConflict
from rollbook.ledger import Claim
from tests.support.ledger import Kit, make_task, rows

ROLLOUTS, RUNS = 60, 4
FAILURES = ("sandbox_lost", "model_call_failed", "timeout", "setup_failed")

T = TypeVar("T")


class Run:
    """One workflow run of an episode, each of its activities delivered one to three times."""

    def __init__(self, kit: Kit, key: str, run_id: str, seed: str) -> None:
        self.kit, self.key, self.run_id = kit, key, run_id
        self.random = random.Random(seed)
        self.fenced = 0

    async def play(self) -> str:
        n = 0
        try:
            while True:
                n += 1
                claim = await self._claim(n)
                if claim.status != "claimed":
                    return claim.status
                if not await self._attempt(claim.attempt_index):
                    return "final"
        except Fenced:
            return "superseded"

    async def _claim(self, n: int) -> Claim:
        claims = await self._deliver(lambda: self.kit.claim(self.key, self.run_id, n))
        # a rerun may be asked for between two deliveries: then the first found a final row, and the second a claim
        made = [claim for claim in claims if claim.status == "claimed"]
        assert len({claim.attempt_index for claim in made}) <= 1
        return (made or claims)[0]

    async def _attempt(self, index: int) -> bool:
        await self._deliver(lambda: self.kit.step(self.key, index, self.run_id, 0))
        await asyncio.sleep(self.random.random() * 0.02)
        if self.random.random() < 0.4:
            reason = self.random.choice(FAILURES)
            ends = await self._deliver(
                lambda: self.kit.end(self.key, index, self.run_id, infrastructure_failure_reason=reason)
            )
        else:
            score = round(self.random.random(), 2)
            await self._deliver(lambda: self.kit.evaluate(self.key, index, self.run_id, score))
            ends = await self._deliver(lambda: self.kit.end(self.key, index, self.run_id))
        assert len(set(map(repr, ends))) == 1
        return bool(ends[0].another_attempt)

    async def _deliver(self, call: Callable[[], Awaitable[T]]) -> list[T]:
        """Deliver one to three times at once; a fenced delivery fences the run when no delivery got through."""
        answers = await asyncio.gather(*(call() for _ in range(self.random.randint(1, 3))), return_exceptions=True)
        good = [answer for answer in answers if not isinstance(answer, BaseException)]
        for answer in answers:
            if isinstance(answer, Fenced):
                self.fenced += 1
            elif isinstance(answer, BaseException):
                raise answer
        if not good:
            raise Fenced("every delivery was fenced")
        return good


@pytest.fixture
async def crowd(kit: Kit) -> Kit:
    """Sixty planned rollouts."""
    await kit.ledger.register_task_set("crowd", [make_task(number) for number in range(20)])
    await kit.register(task_set="crowd", samples=3)
    return kit


@pytest.mark.slow
async def test_sixty_rollouts_four_runs_each_duplicated(crowd: Kit) -> None:
    keys = await crowd.planned()
    runs = [Run(crowd, key, f"{key}-{number}", f"{key}-{number}") for key in keys for number in range(RUNS)]
    random.Random(7).shuffle(runs)
    ends = Counter(await asyncio.gather(*(run.play() for run in runs)))
    assert set(ends) <= {"final", "superseded"}
    assert sum(run.fenced for run in runs) > 10, "the race never happened"
    # a rollout whose last claimant was fenced out is the Janitor's; here its rows tell
    query = "SELECT state, count(*) AS number FROM rollout WHERE batch_id = :b GROUP BY state"
    states = {row["state"]: row["number"] for row in await rows(crowd.ledger, query, b=crowd.batch_id)}
    assert states == {"final": ROLLOUTS}
    report = await crowd.ledger.audit(crowd.batch_id)
    assert report.ok, report.findings[:5]


@pytest.mark.slow
async def test_a_cancel_in_the_middle(crowd: Kit) -> None:
    runs = [Run(crowd, key, f"{key}-{number}", f"{key}{number}") for key in await crowd.planned() for number in (1, 2)]
    playing = [asyncio.create_task(run.play()) for run in runs]
    await asyncio.sleep(0.1)
    await crowd.ledger.close_open(crowd.batch_id, "enough", chunk=9)
    await asyncio.gather(*playing)
    await crowd.ledger.close_open(crowd.batch_id, "enough")
    report = await crowd.ledger.audit(crowd.batch_id)
    assert report.ok, report.findings[:5]


@pytest.mark.slow
async def test_reruns_in_the_middle(crowd: Kit) -> None:
    keys = await crowd.planned()
    runs = [Run(crowd, key, f"{key}-{number}", f"{key}.{number}") for key in keys for number in (1, 2)]

    async def rerun() -> None:
        for _ in range(10):
            await crowd.ledger.request_rerun(crowd.batch_id, "masked", reason="r", requested_by="ann")
            await asyncio.sleep(0.02)

    await asyncio.gather(rerun(), *(run.play() for run in runs))
    report = await crowd.clean()
    assert report.planned == ROLLOUTS


async def test_racing_ends_of_one_attempt_agree(kit: Kit) -> None:
    """Two deliveries with different facts: one counts, the other is refused, whichever comes first."""
    keys = await kit.keys()
    for key in keys:
        await kit.claim(key)
        await kit.evaluate(key, 1, "run-1", 1.0)
        answers = await asyncio.gather(
            kit.end(key, 1, "run-1", infrastructure_failure_reason="timeout"),
            kit.end(key, 1, "run-1", infrastructure_failure_reason="model_timeout"),
            kit.end(key, 1, "run-1", infrastructure_failure_reason="timeout"),
            kit.end(key, 1, "run-1", infrastructure_failure_reason="model_timeout"),
            return_exceptions=True,
        )
        refused = [answer for answer in answers if isinstance(answer, LedgerConflict)]
        assert len(refused) == 2
        assert len(await kit.outcomes(key)) == 1
    await kit.clean()
