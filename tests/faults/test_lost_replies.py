"""Every seventh answer of the ledger is lost after its commit, every tenth transaction before it."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rollbook.ledger import store
from rollbook.ledger.store import transaction
from tests.support.ledger import rows
from tests.support.system import null_spec, running_system, small_tasks, system_settings


class Unreliable:
    """Transactions whose caller often hears nothing, whatever became of them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.lost = 0

    @asynccontextmanager
    async def transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        fate = self.dice.random()
        async with transaction(engine) as conn:
            yield conn
            if fate < 0.1:
                self._lose()
        if fate > 0.85:
            self._lose()

    def _lose(self) -> None:
        self.lost += 1
        raise OperationalError("COMMIT", {}, ConnectionError("the answer was lost"))


@pytest.mark.timeout(600)  # each lost reply costs a pause of the activity that is tried again
async def test_no_answer_is_needed_for_the_truth(
    scratch: Path,
    ledger_url: str,
    temporal_address: str,
    deployment_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = system_settings(scratch / "lost", ledger_url, f"{deployment_id}-l")
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("four", small_tasks(4))
        unreliable = Unreliable(seed=3)
        monkeypatch.setattr(store, "transaction", unreliable.transaction)
        spec = null_spec("four", concurrency=4, seed=7, policy={"kind": "noop", "waits": 2})
        result = await system.run_batch(spec, "lost")
        monkeypatch.undo()
        assert unreliable.lost > 10
        assert (result.state, result.counts.planned) == ("complete", 4)
        assert result.counts.admitted + result.counts.masked == 4
        report = await system.audit("lost")
        assert report.ok, report.findings
        query = (
            "SELECT rollout_key FROM outcome WHERE rollout_key LIKE 'lost/%' GROUP BY rollout_key"
            " HAVING count(*) FILTER (WHERE runtime_eligible) > 1"
            " OR count(*) FILTER (WHERE infrastructure_failure_reason IN ('superseded', 'rollout_error')) > 0"
        )
        assert await rows(system.ledger, query) == []
        assert await system.ledger.live_sandboxes(settings.deployment_id) == []
