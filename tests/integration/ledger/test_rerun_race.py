"""A rerun that waits for a row's lock decides by what was committed meanwhile, not by what it saw before."""

import asyncio

import pytest

from models.admission import AdmissionDecision, Scope
from rollbook.errors import InvalidInput
from rollbook.ledger.admission import Selector
from rollbook.ledger.store import transaction
from tests.support.ledger import Kit, rows
from tests.support.waiting import until

_WAITING = """
    SELECT count(*) AS n FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FOR NO KEY UPDATE%'
"""


def by_hand(admitted: bool) -> AdmissionDecision:
    return AdmissionDecision(scope=Scope.RUNTIME, admitted=admitted, policy_id="by-hand", reason="looked at the video")


async def _rerun_while_deciding(kit: Kit, key: str, admitted: bool, which: Selector | list[str]) -> list[str]:
    """Ask for a rerun while a decision by hand holds the row and is not committed yet."""
    async with transaction(kit.ledger.engine) as conn:
        await kit.ledger.on(conn).decide_admission(key, by_hand(admitted), decided_by="ann")
        asked = asyncio.create_task(kit.ledger.request_rerun(kit.batch_id, which, reason="again", requested_by="bob"))
        await until("the rerun waits for the row", lambda: _someone_waits(kit), 20)
    return await asked


async def _someone_waits(kit: Kit) -> bool:
    return bool((await rows(kit.ledger, _WAITING))[0]["n"])


async def test_a_row_that_is_admitted_meanwhile_is_no_masked_one(kit: Kit) -> None:
    keys = await kit.keys()
    for key in keys[:2]:
        await kit.run(key)
        await kit.ledger.decide_admission(key, by_hand(False), decided_by="ann")
    assert await _rerun_while_deciding(kit, keys[0], True, "masked") == [keys[1]]
    assert (await kit.row(keys[0]))["state"] == "final", "the admitted result stays what it is"
    assert await rows(kit.ledger, "SELECT * FROM rerun_request WHERE rollout_key = :k", k=keys[0]) == []
    await kit.clean()


@pytest.mark.parametrize("named", [True, False])
async def test_admitted_meanwhile_needs_supersede(kit: Kit, named: bool) -> None:
    key = (await kit.keys())[0]
    await kit.run(key)
    await kit.ledger.decide_admission(key, by_hand(False), decided_by="ann")
    with pytest.raises(InvalidInput, match="supersede"):
        await _rerun_while_deciding(kit, key, True, [key] if named else "all")
    assert (await kit.row(key))["state"] == "final"


async def test_two_reruns_at_once_ask_once(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.run(key)
    await kit.ledger.decide_admission(key, by_hand(False), decided_by="ann")
    asked = await asyncio.gather(
        *(kit.ledger.request_rerun(kit.batch_id, "masked", reason="r", requested_by="bob") for _ in range(6))
    )
    assert sorted(asked) == [[], [], [], [], [], [key]]
