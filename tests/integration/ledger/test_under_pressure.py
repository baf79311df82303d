"""Rollouts that were set up or evaluated on a host under pressure: named, counted, and run again on request."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rollbook.cli.report import read
from rollbook.errors import InvalidInput
from rollbook.ledger.records import Phase
from tests.support.ledger import Kit, ref, rows


async def _run(kit: Kit, key: str, **pressure: dict[str, float] | None) -> None:
    """One attempt whose phases ended under these pressures, in percent by resource."""
    await kit.claim(key)
    for phase, measured in pressure.items():
        kept: dict[str, Any] = {"phase": phase, "token": phase, "ok": True, "started_at": datetime.now(UTC)}
        await kit.ledger.record_phase(ref(key, 1), "run-1", Phase(pressure=measured, **kept))
    for step in (0, 1):
        await kit.step(key, 1, "run-1", step, "DONE" if step else None)
    await kit.evaluate(key, 1, "run-1", 1.0)
    await kit.end(key, 1, "run-1")


async def test_they_are_named_counted_and_run_again(kit: Kit) -> None:
    keys = await kit.keys(tasks={"ids": [task.task_id for task in kit.tasks[:4]]})
    await _run(kit, keys[0], setup={"cpu": 3.0}, evaluation={"cpu": 97.5, "io": 85.0})
    await _run(kit, keys[1], setup={"load": 250.0}, evaluation={"load": 20.0})
    await _run(kit, keys[2], setup={"cpu": 80.0}, postconfig=None)
    await _run(kit, keys[3])
    notices = [notice for notice in (await kit.clean()).notices if notice.kind == "under_pressure"]
    assert [notice.subject for notice in notices] == sorted(keys[:2])
    details = {notice.subject: notice.detail for notice in notices}
    assert details[keys[0]].startswith("attempt 1: evaluation under pressure, cpu 97.5 %; ")
    assert details[keys[1]].startswith("attempt 1: setup under pressure, load 250 %; ")
    report = await read(kit.ledger, kit.batch_id, rollouts=False)
    assert [row["rollout_key"] for row in report["under_pressure"]] == [keys[1], keys[0]]

    request: Any = {"reason": "a busy host", "requested_by": "ann"}
    with pytest.raises(InvalidInput, match="2 of them are admitted"):
        await kit.ledger.request_rerun(kit.batch_id, "under pressure", **request)
    again = await kit.ledger.request_rerun(kit.batch_id, "under pressure", **request, supersede=True)
    assert sorted(again) == sorted(keys[:2])


async def test_a_step_has_its_pressure_and_the_answer_time(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    await kit.step(key, 1, "run-1", 0)
    (before,) = await rows(
        kit.ledger,
        "SELECT pressure, answer_s, row_digest = seal(turn) AS sealed FROM turn WHERE rollout_key = :k",
        k=key,
    )
    assert before == {"pressure": None, "answer_s": None, "sealed": True}
    await kit.step(key, 1, "run-1", 1, pressure={"cpu": 99.0}, answer_s=1.5)
    steps = await kit.ledger.steps(key, 1)
    assert [(row["pressure"], row["answer_s"]) for row in steps] == [(None, None), ({"cpu": 99.0}, 1.5)]
