"""Attempts to make the ledger lie by unplanned orders of events."""

from typing import Any

import pytest

from models.admission import AdmissionDecision
from models.batch import Control
from models.spec import read_spec
from rollbook.errors import Fenced
from rollbook.ledger import Ledger
from tests.support.ledger import Kit, make_task, rows


async def test_a_row_refused_by_a_stop_is_not_queued_afterwards(kit: Kit) -> None:
    """The pump starts an episode, a stop comes, the claim is refused, and only then the pump notes the start."""
    key = (await kit.keys())[0]
    await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="stop"))
    assert (await kit.claim(key)).status == "stopping"
    await kit.ledger.mark_queued([key], again=True)
    assert await kit.ledger.in_flight(kit.batch_id) == []  # else the stop would wait without end


async def test_a_row_that_was_queued_before_a_stop_is_started_once_more(kit: Kit) -> None:
    """Its workflow is gone; only a claim that is refused puts the row back to waiting and lets the stop end."""
    key = (await kit.keys())[0]
    await kit.ledger.mark_queued([key])
    await kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="stop"))
    assert [row.rollout_key for row in await kit.ledger.stale_queued(kit.batch_id, -1)] == [key]
    assert await kit.ledger.mark_queued([key], again=True) == [key], "or it would be started again four times a second"
    assert (await kit.claim(key)).status == "stopping"
    assert await kit.ledger.in_flight(kit.batch_id) == []


async def test_a_running_launch_does_not_care_what_its_names_mean_now(kit: Kit, ledger: Ledger) -> None:
    """A batch that continues as new registers again; meanwhile the set was registered with a changed task."""
    await kit.register("launch-1")
    changed = [make_task(0, "chrome", "do something else"), *kit.tasks[1:]]
    await ledger.register_task_set("tasks", changed)
    again = await kit.register("launch-1")
    assert (again.planned, again.added, again.final) == (6, 0, 0)
    again = await kit.register("launch-1", limits={"max_steps": 3})  # a worker that resolves names otherwise
    assert (again.planned, again.added) == (6, 0)


async def test_a_result_masked_by_hand_is_superseded_by_its_rerun(kit: Kit) -> None:
    """Mask a 0, run "the masked ones" again: that is best-of-n in two steps, and it is counted."""
    key = (await kit.keys())[0]
    await kit.run(key, score=0.0)
    decision = AdmissionDecision(policy_id="manual", admitted=False, reason="a popup")
    await kit.ledger.decide_admission(key, decision, decided_by="ann")
    assert await kit.ledger.request_rerun(kit.batch_id, "masked", reason="popup", requested_by="ann") == [key]
    await kit.run(key, score=1.0)
    query = "SELECT superseded FROM scoreboard WHERE batch_id = :id AND domain = '(all)'"
    assert [row["superseded"] for row in await rows(kit.ledger, query, id=kit.batch_id)] == [1]
    report = await kit.clean()
    assert "superseded" in {notice.kind for notice in report.notices}


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("desktop.image", {"desktop": {"image": "img\x00age"}}),
        ("desktop.image", {"desktop": {"image": "img\ud800"}}),
        ("note", {"note": "half \ud83d a character"}),
        ("note", {"note": "nul\x00"}),
        ("tasks.exclude_ids", {"tasks": {"exclude_ids": ["x\x00"]}}),
    ],
)
def test_text_that_postgres_cannot_hold_is_refused_with_its_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=field):
        read_spec({"task_set": "tasks", "policy": {"kind": "noop"}, **changes})


async def test_an_activity_of_an_earlier_launch_has_no_say(kit: Kit) -> None:
    """A worker stalls while it closes a cancelled batch; it wakes up after the batch was launched again."""
    await kit.register("old")
    await kit.ledger.mark_cancelling(kit.batch_id, "enough", "old")
    await kit.register("new")
    for late in (
        kit.ledger.mark_cancelling(kit.batch_id, "enough", "old"),
        kit.ledger.close_open(kit.batch_id, "enough", launch_id="old"),
        kit.ledger.set_control(Control(batch_id=kit.batch_id, verb="stop", launch_id="old")),
        kit.ledger.close_open(kit.batch_id, "a launch that was refused", launch_id="never registered"),
    ):
        with pytest.raises(Fenced, match="belongs to launch new"):
            await late
    control = await kit.ledger.batch_control(kit.batch_id)
    assert (control.cancelling, control.stopping) == (False, False)
    assert (await kit.ledger.counts(kit.batch_id)).waiting == 6
    assert await kit.ledger.close_open(kit.batch_id, "enough", launch_id="new") == 6
