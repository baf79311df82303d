"""Conclusions of the Janitor when the services it queries fail. The ledger is real."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCStatusCode

from activities.janitor import Run
from activities.support import PAYLOAD_LIMIT_BYTES
from models.batch import Control
from models.episode import DesktopRef
from models.janitor import Reconciled, ReconcileRequest
from rollbook.artifacts import ArtifactStore
from rollbook.errors import Fenced
from rollbook.ledger import Ledger, migrate
from rollbook.worker.services import Services
from tests.doubles.unsure_services import RUNNING, TERMINATED, UnsureProvider, UnsureTemporal, rpc_error
from tests.support.ledger import DEPLOYMENT, Kit, make_tasks, ref, rows
from tests.support.system import system_settings

GAP_S = 0.001


@dataclass
class House:
    """A ledger with a batch, and the two who may fail."""

    kit: Kit
    services: Services
    temporal: UnsureTemporal
    provider: UnsureProvider

    async def look(self, **request: Any) -> Reconciled:
        """One run of the Janitor."""
        asked = ReconcileRequest.model_validate({"min_age_s": 0, "gap_s": GAP_S} | request)
        run = Run(self.services, self.temporal, asked)  # type: ignore[arg-type]
        for _, step in run.steps():
            await step()
        await asyncio.sleep(2 * GAP_S)
        return run.report()

    async def state(self, key: str) -> str:
        return str((await self.kit.row(key))["state"])

    async def desktop(self, key: str, attempt: int = 1, run_id: str = "run-1", sandbox_key: str = "desktop") -> str:
        """Give an open attempt a running desktop; its key."""
        lease = {"deployment_id": DEPLOYMENT, "provider": "null", "lease_s": 60.0}
        ledger = self.kit.ledger
        await ledger.sandbox_intent(ref(key, attempt), run_id, sandbox_key=sandbox_key, **lease)  # type: ignore[arg-type]
        desktop = DesktopRef(provider="null", sandbox_id=f"id-{sandbox_key}", sandbox_key=sandbox_key, nonce="n")
        await ledger.sandbox_started(ref(key, attempt), run_id, desktop, lease_s=60.0)
        self.provider.keys.append(sandbox_key)
        return sandbox_key

    async def live(self) -> list[str]:
        return [lease.sandbox_key for lease in await self.kit.ledger.live_sandboxes(DEPLOYMENT)]


@pytest.fixture
async def house(database_url: str, tmp_path: Path) -> AsyncIterator[House]:
    await asyncio.to_thread(migrate.upgrade, database_url)
    settings = system_settings(tmp_path, database_url, DEPLOYMENT)
    ledger, provider = Ledger.connect(database_url), UnsureProvider()
    kit = Kit(ledger, tasks=make_tasks(6))
    await ledger.register_task_set("tasks", kit.tasks)
    services = Services(settings, ledger, ArtifactStore.open(settings.artifacts), {"null": provider})
    yield House(kit, services, UnsureTemporal(known={kit.batch_id: RUNNING}), provider)
    await ledger.aclose()


@pytest.mark.parametrize(
    "failure", [rpc_error(RPCStatusCode.UNAVAILABLE), rpc_error(RPCStatusCode.PERMISSION_DENIED), ValueError("paused")]
)
async def test_a_failed_question_is_no_sighting(house: House, failure: Exception) -> None:
    key = (await house.kit.keys())[0]
    await house.kit.claim(key)
    house.temporal.known |= {key: failure, house.kit.batch_id: failure}
    for _ in range(3):
        found = await house.look()
        assert (found.looked_at, found.missing, found.closed, found.unattended) == (1, 0, [], [])
        assert len(found.doubts) == found.totals["doubts"] == 2
    assert await rows(house.kit.ledger, "SELECT * FROM sighting") == []
    house.temporal.known[key] = RUNNING
    assert (await house.look()).alive == 1
    assert await house.state(key) == "running"


async def test_a_failed_question_between_two_misses_leaves_the_first(house: House) -> None:
    key = (await house.kit.keys())[0]
    await house.kit.claim(key)
    assert (await house.look()).closed == []
    house.temporal.known[key] = rpc_error(RPCStatusCode.DEADLINE_EXCEEDED)
    assert (await house.look()).closed == []
    house.temporal.known[key] = TERMINATED
    assert (await house.look()).closed == [f"{key} attempt 1"]


async def test_a_workflow_that_shows_up_again_starts_the_count_anew(house: House) -> None:
    key = (await house.kit.keys())[0]
    await house.kit.claim(key)
    for known in ({}, {key: RUNNING}, {}):
        house.temporal.known = {house.kit.batch_id: RUNNING} | known
        assert (await house.look()).closed == []
    assert (await house.look()).closed == [f"{key} attempt 1"]
    assert await house.state(key) == "waiting"
    await house.kit.clean()


async def test_looks_at_short_intervals_are_one(house: House) -> None:
    """A repeated activity, or `rollbook reconcile` run twice: the same absence, seen twice."""
    key = (await house.kit.keys())[0]
    await house.kit.claim(key)
    for _ in range(4):
        assert (await house.look(gap_s=60)).closed == []
    (sighting,) = await rows(house.kit.ledger, "SELECT seen FROM sighting")
    assert sighting["seen"] == 1
    assert (await house.look()).closed == [f"{key} attempt 1"]


async def test_the_listing_of_episodes_fails(house: House) -> None:
    key = (await house.kit.keys())[0]
    await house.kit.run(key, "run-1")
    house.temporal.listed = rpc_error(RPCStatusCode.UNAVAILABLE)
    for _ in range(3):
        found = await house.look()
        assert (found.cancelled, house.temporal.cancels) == ([], [])
        assert ["list of running episodes" in doubt for doubt in found.doubts] == [True]


async def test_an_empty_listing_proves_nothing(house: House) -> None:
    """Neither a row nor a desktop is given up because a list leaves it out: what counts is asked for by name."""
    key = (await house.kit.keys())[0]
    await house.kit.claim(key)
    desktop = await house.desktop(key)
    house.temporal.known[key] = RUNNING
    house.provider.keys = []
    for _ in range(3):
        found = await house.look()
        assert (found.closed, found.reaped, found.strangers, found.doubts) == ([], [], 0, [])
    assert (await house.state(key), await house.live()) == ("running", [desktop])


async def test_the_run_that_was_listed_is_cancelled_and_no_other(house: House) -> None:
    key = (await house.kit.keys())[0]
    await house.kit.run(key, "run-1")
    house.temporal.known[key] = RUNNING
    house.temporal.listed = [(key, "run-1"), ("somebody/else/s/0", "run-2")]
    assert (await house.look()).cancelled == []
    assert (await house.look()).cancelled == [key]
    assert house.temporal.cancels == [(key, "run-1")], "a rerun's workflow has the same id and another run"
    house.temporal.listed = [(key, "run-3")]
    assert (await house.look()).cancelled == [], "another run is looked at for the first time"


@pytest.mark.parametrize(("status", "doubts"), [(RPCStatusCode.NOT_FOUND, 0), (RPCStatusCode.UNAVAILABLE, 1)])
async def test_cancelled_is_said_of_what_was_told(house: House, status: RPCStatusCode, doubts: int) -> None:
    key = (await house.kit.keys())[0]
    await house.kit.run(key, "run-1")
    house.temporal.known[key] = RUNNING
    house.temporal.listed, house.temporal.on_cancel = [(key, "run-1")], rpc_error(status)
    for number in range(3):
        found = await house.look()
        assert (found.cancelled, len(found.doubts)) == ([], doubts if number else 0)
    assert len(house.temporal.cancels) == 2, "tried again every time"
    house.temporal.known[key] = TERMINATED
    found = await house.look()
    assert (found.cancelled, found.doubts, len(house.temporal.cancels)) == ([], [], 2), "listed, but it has ended"


async def test_a_queued_row_without_a_workflow_waits_again(house: House) -> None:
    key = (await house.kit.keys())[0]
    await house.kit.ledger.mark_queued([key])
    assert (await house.look()).requeued == []
    await house.kit.ledger.mark_queued([key], again=True)
    assert (await house.look()).requeued == [], "it was started again since: what was seen before does not count"
    assert (await house.look()).requeued == [key]
    assert await house.state(key) == "waiting"


async def test_sightings_end_with_what_they_were_about(house: House) -> None:
    """Queue, claim, end and rerun each begin a new count, for rows, workflows of final rows and desktops alike."""
    key, ledger = (await house.kit.keys())[0], house.kit.ledger
    kinds = ["", "run-1", "final run-1", "desktop d", "batch l"]

    async def seen() -> set[int]:
        return {await ledger.count_missing(key, kind) for kind in kinds}

    assert await seen() == {1}
    assert await seen() == {2}
    await ledger.mark_queued([key])
    assert await seen() == {1}
    await house.kit.claim(key, "run-1")
    assert await seen() == {1}
    assert await seen() == {2}
    await house.kit.evaluate(key, 1, "run-1", 1.0)
    assert await seen() == {3}, "evidence does not change what is asked"
    await house.kit.end(key, 1, "run-1")
    assert await seen() == {1}
    await ledger.request_rerun(house.kit.batch_id, [key], reason="r", requested_by="ann", supersede=True)
    assert await seen() == {1}
    assert await seen() == {2}


async def test_desktops_whose_provider_is_away(house: House) -> None:
    """Nothing is reaped, nothing is forgotten; the other provider's desktops are looked at."""
    keys = await house.kit.keys()
    other = house.services.providers["other"] = UnsureProvider("other")  # type: ignore[index]
    other.keys = ["nobody-knows"]
    await house.kit.claim(keys[0])
    desktop = await house.desktop(keys[0])
    await house.kit.end(keys[0], 1, "run-1", infrastructure_failure_reason="sandbox_lost")
    house.provider.is_away = True
    house.temporal.known[keys[0]] = RUNNING
    for number in range(3):
        found = await house.look()
        assert (found.reaped, found.strangers) == ([], 1)
        wanted = ["desktops of null"] if number == 0 else [f"desktop {desktop}", "desktops of null"]
        assert [doubt.split(":")[0] for doubt in found.doubts] == wanted
    assert await house.live() == [desktop]
    house.provider.is_away = False
    assert (await house.look()).reaped == [desktop]
    assert await house.live() == []
    assert other.stopped == [], "a stranger is counted, never touched"


async def test_a_desktop_that_comes_after_its_stop(house: House) -> None:
    key = (await house.kit.keys())[0]
    await house.kit.claim(key)
    desktop = await house.desktop(key)
    await house.kit.ledger.sandbox_stopped(desktop, reason="the episode's end")
    house.temporal.known[key] = RUNNING
    found = await house.look()
    assert (found.reaped, found.strangers, house.provider.keys) == ([desktop], 0, [])
    assert desktop in house.provider.stopped
    assert (await house.look()).reaped == []


async def test_a_cancel_that_its_batch_did_not_finish(house: House) -> None:
    """Terminated in mid-cancel: fenced and closed for it, its episodes cancelled, admitted results kept."""
    kit = house.kit
    keys = await kit.keys()
    await kit.run(keys[0])
    await kit.claim(keys[1], "run-1")
    await kit.ledger.mark_queued([keys[2]])
    await kit.ledger.mark_cancelling(kit.batch_id, "enough of it")
    house.temporal.known = {kit.batch_id: RUNNING, keys[1]: RUNNING, keys[2]: RUNNING}
    for _ in range(3):
        assert (await house.look()).finished == [], "its workflow lives, and does it itself"
    house.temporal.known[kit.batch_id] = rpc_error(RPCStatusCode.UNAVAILABLE)
    for _ in range(3):
        assert (await house.look()).finished == []
    house.temporal.known[kit.batch_id] = TERMINATED
    assert (await house.look()).finished == []
    assert (await house.look(min_age_s=3600)).finished == [], "launched only just now"
    found = await house.look()
    assert (found.finished, found.cancelled) == ([f"{kit.batch_id}: 5 rows closed"], [keys[1]])
    assert house.temporal.cancels == [(keys[1], "run-1")]
    with pytest.raises(Fenced):
        await kit.end(keys[1], 1, "run-1")
    counts = await kit.ledger.counts(kit.batch_id)
    assert (counts.admitted, counts.masked) == (1, 5)
    (end,) = await kit.outcomes(keys[1])
    assert (end["termination_reason"], end["detail"]) == ("cancelled", "enough of it")
    assert (await house.look()).finished == []
    assert (await kit.clean()).ok


async def test_a_relaunch_keeps_a_cancelled_batch_open(house: House) -> None:
    kit = house.kit
    await kit.keys()
    await kit.ledger.mark_cancelling(kit.batch_id, "enough")
    house.temporal.known = {}
    assert (await house.look()).finished == []
    await kit.register("the next launch")
    found = await house.look()
    assert (found.finished, found.unattended) == ([], [kit.batch_id])
    await kit.ledger.mark_cancelling(kit.batch_id, "enough")
    assert (await house.look()).finished == [], "the first look at another launch"
    assert (await kit.ledger.counts(kit.batch_id)).waiting == 6


async def test_a_batch_told_to_stop_is_stopped_when_nothing_runs(house: House) -> None:
    kit = house.kit
    keys = await kit.keys()
    await kit.claim(keys[0])
    await kit.ledger.mark_queued([keys[1]])
    await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="stop"))
    house.temporal.known = {keys[0]: RUNNING}
    assert (await house.look()).stopped == []
    found = await house.look()
    assert (found.requeued, found.stopped, found.unattended) == ([keys[1]], [], [])
    house.temporal.known = {}
    assert (await house.look()).stopped == []
    found = await house.look()
    assert (found.closed, found.stopped) == ([f"{keys[0]} attempt 1"], [kit.batch_id])
    counts = await kit.ledger.counts(kit.batch_id)
    assert (counts.waiting, counts.running, counts.planned) == (6, 0, 6), "planned rows stay planned"


async def test_a_report_fits_a_history(house: House) -> None:
    """However much was found: the report is small, and says how much there was."""
    run = Run(house.services, house.temporal, ReconcileRequest())  # type: ignore[arg-type]
    for found in run._names.values():
        found.extend(f"{number:04d}" + "x" * 190 for number in range(400))
    report = run.report()
    assert len(report.model_dump_json()) < PAYLOAD_LIMIT_BYTES
    assert set(report.totals.values()) == {400}
    assert all(getattr(report, name) for name in report.totals), "some of each are named"
