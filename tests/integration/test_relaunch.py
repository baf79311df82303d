"""Relaunch, extend, rerun and a trainer's identity through real workflows, on the do-nothing desktop."""

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import WorkflowAlreadyStartedError

from models.identity import scoped_group_id, scoped_rollout_id
from rollbook.cli import main
from tests.support.system import System, as_login, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until

SLOW = {"policy": {"kind": "noop", "waits": 3000}, "limits": {"max_steps": 1000}}


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str) -> AsyncIterator[System]:
    settings = system_settings(scratch / "relaunch", ledger_url, f"{deployment_id}-r")
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("four", small_tasks(4))
        yield system


async def query(system: System, statement: str, **values: Any) -> list[dict[str, Any]]:
    async with system.ledger.engine.connect() as connection:
        return [dict(row) for row in (await connection.execute(text(statement), values)).mappings()]


async def attempts(system: System, batch_id: str) -> dict[str, list[str]]:
    """Run ids of the attempts of each rollout, in their order."""
    statement = """
        SELECT task_id || '/' || sample AS name, array_agg(run_id ORDER BY attempt_index) AS runs
        FROM rollout JOIN attempt USING (rollout_key) WHERE batch_id = :b GROUP BY 1
    """
    return {row["name"]: row["runs"] for row in await query(system, statement, b=batch_id)}


async def proven(system: System, batch_id: str, planned: int) -> list[str]:
    """The audit is clean; kinds of its notices."""
    report = await system.audit(batch_id)
    assert report.ok, report.findings
    assert (report.planned, report.final) == (planned, planned)
    return [notice.kind for notice in report.notices]


async def refusal(system: System, spec: Any, batch_id: str) -> str:
    """The reason of the workflow's refusal."""
    with pytest.raises(WorkflowFailureError) as failure:
        await system.run_batch(spec, batch_id)
    return str(failure.value.cause)


async def test_four_planned_one_done_runs_three(system: System) -> None:
    first = await system.run_batch(null_spec("four", tasks={"ids": ["t000"]}), "extended")
    assert (first.counts.planned, first.counts.admitted) == (1, 1)
    before = await attempts(system, "extended")
    assert "set extend to true to add tasks" in await refusal(system, null_spec("four"), "extended")
    assert await attempts(system, "extended") == before
    done = await system.run_batch(null_spec("four", extend=True), "extended")
    assert (done.state, done.counts.planned, done.counts.admitted) == ("complete", 4, 4)
    after = await attempts(system, "extended")
    assert [len(runs) for runs in after.values()] == [1, 1, 1, 1], "exactly three ran"
    assert after["t000/0"] == before["t000/0"]
    two = await system.run_batch(null_spec("four", extend=True, samples=2), "extended")
    assert (two.state, two.counts.planned, two.counts.admitted) == ("complete", 8, 8)
    assert after.items() <= (await attempts(system, "extended")).items(), "nobody ran twice"
    again = await system.run_batch(null_spec("four", samples=2), "extended")
    assert again.state == "already complete"
    assert "samples may only grow" in await refusal(system, null_spec("four"), "extended")
    await proven(system, "extended", 8)


async def test_a_stopped_batch_runs_only_what_is_left(system: System) -> None:
    spec = null_spec("four", concurrency=1, policy={"kind": "noop", "waits": 20}, limits={"max_steps": 30})
    handle = await system.start_batch(spec, "stopped")

    async def one_done() -> bool:
        return (await system.ledger.counts("stopped")).admitted >= 1

    await until("one is done", one_done)
    await handle.signal("stop")
    stopped = await handle.result()
    assert stopped.state == "stopped"
    assert stopped.counts.waiting >= 1
    before = await attempts(system, "stopped")
    done = await system.run_batch(spec, "stopped")
    assert (done.state, done.counts.admitted) == ("complete", 4)
    after = await attempts(system, "stopped")
    assert before.items() <= after.items()
    assert all(len(runs) == 1 for runs in after.values())
    await proven(system, "stopped", 4)


def write_tasks(directory: Path, documents: list[dict[str, Any]], shuffle: random.Random | None = None) -> None:
    """A directory in OSWorld's layout; `shuffle` writes the same tasks in another order and another form."""
    folder = directory / "examples" / "os"
    folder.mkdir(parents=True, exist_ok=True)
    listed = [document["id"] for document in documents]
    for document in documents:
        names = list(document)
        if shuffle:
            shuffle.shuffle(names)
        reordered = {name: document[name] for name in names}
        text_ = json.dumps(reordered, indent=shuffle.choice([1, 7]) if shuffle else None)
        (folder / f"{document['id']}.json").write_text(text_)
    if shuffle:
        shuffle.shuffle(listed)
    (directory / "test_all.json").write_text(json.dumps({"os": listed}, indent=3 if shuffle else None))


async def test_the_order_and_form_of_task_files_change_nothing(system: System, tmp_path: Path) -> None:
    documents = small_tasks(4)
    write_tasks(tmp_path, documents)
    await system.register_directory("files", tmp_path)
    await system.run_batch(null_spec("files"), "reordered")
    before = await attempts(system, "reordered")
    write_tasks(tmp_path, documents, random.Random(7))
    await system.register_directory("files", tmp_path)
    again = await system.run_batch(null_spec("files"), "reordered")
    assert (again.state, again.counts.planned) == ("already complete", 4)
    assert await attempts(system, "reordered") == before
    changed = [{**documents[0], "instruction": "something else"}, *documents[1:]]
    write_tasks(tmp_path, changed)
    await system.register_directory("files", tmp_path)
    assert "task os/t000 is another version than the batch planned" in await refusal(
        system, null_spec("files"), "reordered"
    )
    await proven(system, "reordered", 4)


async def test_a_running_batch_meets_another_contract(
    system: System,
    temporal_address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`rollbook submit` refuses with the difference; the plain start does not reach the ledger: the id is taken."""
    for name, value in as_login(system.settings, "operator").environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_address)
    spec = null_spec("four", **SLOW)
    handle = await system.start_batch(spec, "busy")

    async def runs() -> bool:
        return (await system.ledger.counts("busy")).running == 2

    await until("two run", runs)
    with pytest.raises(WorkflowAlreadyStartedError):
        await system.start_batch(spec | {"seed": 4}, "busy")

    async def submit(changed: dict[str, Any]) -> tuple[int, str]:
        file = tmp_path / "spec.json"
        file.write_text(json.dumps(changed))
        code = await asyncio.to_thread(main.run, ["submit", str(file), "--batch-id", "busy"])
        return code, capsys.readouterr().err

    code, said = await submit(spec | {"seed": 4, "limits": {"max_steps": 999}})
    assert (code, "limits.max_steps: 1000 -> 999; seed: 0 -> 4" in said) == (2, True)
    identity = {"sampling_event_id": "late", "source_group_ids": {f"t00{number}": f"g{number}" for number in range(4)}}
    code, said = await submit(spec | {"identity": identity})
    assert (code, "is running with another identity" in said) == (2, True)
    assert (await submit(spec))[0] == 0
    assert (await system.ledger.counts("busy")).running == 2
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    await proven(system, "busy", 4)


async def test_rerun_of_masked_failed_named_and_admitted(system: System) -> None:
    # with this seed three fail at first, each in another way, and one of them fails again
    spec = null_spec("four", samples=3, concurrency=8, seed=73, max_attempts=1)
    first = await system.run_batch(spec, "rerun")
    assert first.counts.masked >= 3
    before = await attempts(system, "rerun")
    said: dict[str, Any] = {"reason": "the hosts were mended", "requested_by": "ann"}

    failed = await system.ledger.request_rerun("rerun", "failed", **said)
    assert 0 < len(failed) <= first.counts.masked
    second = await system.run_batch(spec, "rerun")
    assert second.state == "complete"
    assert second.counts.planned == 12
    again = {key.split("/", 2)[2] for key in failed}
    after = await attempts(system, "rerun")
    assert {name for name, runs in after.items() if len(runs) > len(before[name])} == again
    assert all(after[name][: len(before[name])] == before[name] for name in after), "old attempts stay"
    assert second.counts.admitted > first.counts.admitted

    masked = await system.ledger.request_rerun("rerun", "masked", **said)
    assert len(masked) == second.counts.masked
    await system.run_batch(spec, "rerun")

    admitted = [
        row["rollout_key"]
        for row in await query(
            system, "SELECT rollout_key FROM rollout_result WHERE batch_id = 'rerun' AND admitted ORDER BY 1 LIMIT 2"
        )
    ]
    with pytest.raises(Exception, match="best of several attempts"):
        await system.ledger.request_rerun("rerun", admitted[:1], **said)
    with pytest.raises(Exception, match="reason: give a reason"):
        await system.ledger.request_rerun("rerun", admitted[:1], reason=" ", requested_by="ann", supersede=True)
    assert await system.ledger.request_rerun("rerun", admitted[:1], supersede=True, **said) == admitted[:1]
    last = await system.run_batch(spec, "rerun")
    assert (last.state, last.counts.planned) == ("complete", 12)
    (board,) = await query(system, "SELECT * FROM scoreboard WHERE batch_id = 'rerun' AND domain = '(all)'")
    assert (board["superseded"], board["reruns"]) == (1, len(failed) + len(masked) + 1)
    assert (await proven(system, "rerun", 12)).count("superseded") == 1


async def test_a_trainers_batch_from_event_to_training_rows(system: System) -> None:
    event = f"sampling-train-step-00000001-{uuid.uuid4().hex}"
    groups = {f"t00{number}": f"g-{number}" for number in range(4)}
    spec = null_spec(
        "four",
        samples=3,
        concurrency=6,
        purpose="train",
        seed=11,
        identity={"sampling_event_id": event, "source_group_ids": groups},
    )
    done = await system.run_batch(spec, "event-1")
    assert (done.state, done.counts.planned) == ("complete", 12)
    found = await query(system, "SELECT * FROM training_rows WHERE batch_id = 'event-1'")
    assert len(found) == len({row["trajectory_rollout_id"] for row in found}) == 12
    assert len({row["execution_id"] for row in found}) == 12
    for row in found:
        source = groups[row["task_id"]]
        assert row["group_id"] == scoped_group_id(event, source)
        assert row["trajectory_rollout_id"] == scoped_rollout_id(
            event, source, row["task_id"], row["rollout_index"], row["attempt_index"] - 1
        )
        assert row["trainable"] == row["runtime_admitted"], "who is admitted is trainable, who is masked is not"
        assert row["group_planned"] == row["group_members"] == 3
    assert {row["trainable"] for row in found} == {True, False}, "the draw of seed 11 has both"
    assert (await system.run_batch(spec, "event-1")).state == "already complete"
    assert "belongs to batch event-1" in await refusal(system, spec, "event-2")
    spec["identity"] = {"sampling_event_id": event, "source_group_ids": groups | {"t000": "other"}}
    assert "the group of task t000: 'g-0' -> 'other'" in await refusal(system, spec, "event-1")
    spec["identity"] = {"sampling_event_id": event}
    assert "give all identity fields or none" in await refusal(system, spec, "event-3")
    await proven(system, "event-1", 12)
