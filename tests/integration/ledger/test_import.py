"""Results from elsewhere become a finished batch: whole, or not at all, and the audit is clean afterwards."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from models.admission import AdmissionDecision
from models.gym_results import read_row
from rollbook.artifacts import ArtifactStore
from rollbook.cli import main
from rollbook.cli.command import read_json_lines
from rollbook.errors import InvalidInput, SpecConflict
from rollbook.export.gym import export_gym
from rollbook.ledger.admission import PolicyToReapply
from rollbook.ledger.imports import Source
from tests.support.ledger import DEPLOYMENT, NAMESPACE, Kit, rows


def old(task: int, sample: int = 0, *, masked: bool = False, score: float = 1.0, **more: Any) -> dict[str, Any]:
    """A result that says only mask_sample."""
    row = {"task_id": f"task-{task:03d}", "_ng_rollout_index": sample, "mask_sample": masked, "score": score}
    return row | {"reward": float(score >= 1)} | more


RESULTS = [
    old(1, termination_reason="agent_done"),
    old(0, 1, score=0.5),
    old(0, masked=True, score=0.0, termination_reason="timeout"),
    old(2, masked=True, score=0.0),
    old(3, termination_reason="max_steps", score=0.0),
]


def source(kit: Kit, results: list[dict[str, Any]], **changes: Any) -> Source:
    values: dict[str, Any] = {
        "batch_id": kit.batch_id,
        "deployment_id": DEPLOYMENT,
        "namespace": NAMESPACE,
        "task_set": "tasks",
        "reward_mode": "binary",
        "sha256": "0" * 64,
        "rows": [read_row(row, "binary") for row in results],
    }
    return Source(**(values | changes))


async def test_old_results_become_a_finished_batch(kit: Kit) -> None:
    done = await kit.ledger.import_results(source(kit, RESULTS, model="m-72b", note="the old run"))
    assert (done.planned, done.added, done.final) == (5, 5, 5)
    query = "SELECT * FROM rollout_result WHERE batch_id = :b ORDER BY plan_order"
    found = await rows(kit.ledger, query, b=kit.batch_id)
    assert [
        (r["task_id"], r["sample"], r["admitted"], r["admission_reason"], r["score"], r["reward"]) for r in found
    ] == [
        ("task-000", 0, False, "timeout", None, None),
        ("task-003", 0, True, "legacy_runtime_valid", 0.0, 0.0),
        ("task-001", 0, True, "legacy_runtime_valid", 1.0, 1.0),
        ("task-002", 0, False, "legacy_runtime_masked", None, None),
        ("task-000", 1, True, "legacy_runtime_valid", 0.5, 0.0),
    ]
    assert {row["admission_policy_id"] for row in found} == {"legacy-mask-sample-v1"}
    report = await kit.ledger.audit(kit.batch_id)
    assert report.ok, report.findings
    assert (report.planned, report.final) == (5, 5)
    (total,) = await rows(
        kit.ledger, "SELECT * FROM scoreboard WHERE batch_id = :b AND domain = '(all)'", b=kit.batch_id
    )
    assert (total["planned"], total["admitted"], total["binary_success_count"]) == (5, 3, 1)
    evidence = "SELECT evidence FROM admission WHERE rollout_key = :key"
    (kept,) = await rows(kit.ledger, evidence, key=found[0]["rollout_key"])
    said = {"row": 3, "mask_sample": True, "score": 0.0, "reward": 0.0, "termination_reason": "timeout"}
    assert said.items() <= kept["evidence"].items()


async def test_the_same_file_again_changes_nothing_and_another_is_refused(kit: Kit) -> None:
    await kit.ledger.import_results(source(kit, RESULTS))
    again = await kit.ledger.import_results(source(kit, RESULTS))
    assert (again.planned, again.added) == (5, 0)
    with pytest.raises(SpecConflict, match=r"imported.file_sha256: '0+' -> '1+'"):
        await kit.ledger.import_results(source(kit, RESULTS, sha256="1" * 64))
    with pytest.raises(SpecConflict, match="exists with another contract"):
        await kit.register()
    assert (await kit.ledger.audit(kit.batch_id)).ok


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([*RESULTS, old(1)], "line 6: task task-001 rollout 0 is in line 1 already"),
        ([*RESULTS, old(99)], "line 6: task_id: task set tasks has no task 'task-099'"),
        ([*RESULTS, old(1, 2)], "task task-001: rollout 1 of 0..2 is missing in the file"),
        ([*RESULTS, old(1, 999_999)], "task task-001: rollout 1 of 0..999999 is missing in the file"),
        ([], "the file holds no result"),
    ],
)
async def test_nothing_is_half_done(kit: Kit, results: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await kit.ledger.import_results(source(kit, results))
    with pytest.raises(InvalidInput, match="no batch"):
        await kit.ledger.audit(kit.batch_id)


async def test_a_refusal_of_the_database_leaves_nothing_either(kit: Kit) -> None:
    """The last row contradicts itself in a way that only a constraint sees: everything before it is rolled back."""
    bad = source(kit, RESULTS)
    broken = bad.rows[-1].model_copy(update={"reward": 0.5})
    with pytest.raises(Exception, match="outcome_reward_of_score"):
        await kit.ledger.import_results(source(kit, RESULTS, rows=[*bad.rows[:-1], broken]))
    assert await kit.planned() == []
    assert (await kit.ledger.import_results(bad)).added == 5


async def test_imported_rows_are_decided_by_hand_and_never_run(kit: Kit) -> None:
    await kit.ledger.import_results(source(kit, RESULTS))
    key = f"{kit.batch_id}/os/task-001/0"
    done = await kit.ledger.reapply_policy(kit.batch_id, PolicyToReapply("exclude-in-doubt-v1", "stricter", "ann"))
    assert (done.kept_imported, done.admitted, done.masked) == (5, 0, 0)
    mask = AdmissionDecision(policy_id="rollbook-manual-v1", admitted=False, reason="leaked")
    await kit.ledger.decide_admission(key, mask, decided_by="ann")
    assert (await kit.ledger.counts(kit.batch_id)).admitted == 2
    with pytest.raises(InvalidInput, match="was imported; it ran elsewhere"):
        await kit.ledger.request_rerun(kit.batch_id, "masked", reason="again", requested_by="ann")
    assert (await kit.claim(key)).status == "final"
    open_ = [batch.batch_id for batch in await kit.ledger.open_batches(DEPLOYMENT, NAMESPACE)]
    assert kit.batch_id not in open_
    assert (await kit.ledger.audit(kit.batch_id)).ok


def test_the_command(
    kit: Kit,
    ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROLLBOOK_DATABASE_URL", ledger_url)
    monkeypatch.setenv("ROLLBOOK_STATE_DIR", str(tmp_path))
    file = tmp_path / "old.jsonl"
    file.write_text("\n".join(map(json.dumps, RESULTS)) + "\n")
    command = ["import", "legacy", str(file), "--batch-id", kit.batch_id, "--task-set", "tasks"]
    assert main.run([*command, "--json", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "checked"
    assert main.run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "batch_id": kit.batch_id,
        "state": "imported",
        "planned": 5,
        "admitted": 3,
        "masked": 2,
        "skipped": 0,
    }
    assert main.run(command) == 0
    assert "already imported: 5 rollouts, 3 admitted" in capsys.readouterr().out
    assert main.run(["audit", kit.batch_id, "--json"]) == 0
    assert main.run(["status", kit.batch_id]) in (0, 1)  # Temporal is not there
    capsys.readouterr()
    assert main.run(["report", kit.batch_id]) == 0
    capsys.readouterr()
    file.write_text(json.dumps({"task_id": "task-000", "score": 1.0}) + "\n")
    assert main.run([*command[:-3], "other", "--task-set", "tasks"]) == 2
    assert "line 1: neither runtime_eligible nor mask_sample" in capsys.readouterr().err
    file.write_text('{"score": NaN}\n')
    assert main.run(command) == 2
    assert "line 1: NaN is not JSON" in capsys.readouterr().err


async def exported(kit: Kit, directory: Path) -> list[str]:
    """Lines of the main file and the sidecar of a batch: admitted; masked; masked and then run again."""
    admitted, masked, again = await kit.keys(samples=3, tasks={"ids": ["task-000"]})
    await kit.run(admitted)
    for key in (masked, again):
        claimed = await kit.claim(key)
        await kit.end(key, claimed.attempt_index, "run-1", infrastructure_failure_reason="timeout")
    await kit.ledger.request_rerun(kit.batch_id, [again], reason="again", requested_by="ann")
    await kit.run(again, run_id="run-2")
    store = ArtifactStore.open(f"file://{directory}/store")
    await export_gym(kit.ledger, store, kit.batch_id, directory / "gym.jsonl")
    names = ("gym_failures.jsonl", "gym.jsonl")
    return [line for name in names for line in (directory / name).read_text().split("\n") if line]


async def test_main_file_and_sidecar_together_are_read(
    kit: Kit,
    ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROLLBOOK_DATABASE_URL", ledger_url)
    monkeypatch.setenv("ROLLBOOK_STATE_DIR", str(tmp_path))
    lines = await exported(kit, tmp_path)
    file, batch_id = tmp_path / "all.jsonl", f"{kit.batch_id}-back"
    command = ["import", "legacy", str(file), "--batch-id", batch_id, "--task-set", "tasks"]

    async def run(content: list[str], *more: str) -> tuple[int, str]:
        file.write_text("\n".join(content))
        code = await asyncio.to_thread(main.run, [*command, *more])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    beside = [line for line in lines if '"_ng_failure_terminal":false' in line]
    assert (len(lines), len(beside)) == (4, 1)
    code, said = await run(beside)
    assert (code, "holds no result, only 1 row of attempts beside one" in said) == (2, True), said
    code, said = await run(["", *lines, lines[-1]])
    assert (code, "line 6: task task-000 rollout" in said, "in line 5 already" in said) == (2, True, True), said
    code, said = await run([*lines, '{"_ng_failure_terminal": 0}'])
    assert (code, "line 5: _ng_failure_terminal: must be" in said) == (2, True), said
    code, said = await run(lines)
    assert (code, "1 row skipped" in said) == (0, True), said
    code, said = await run(lines, "--json")
    numbers = {"planned": 3, "admitted": 2, "masked": 1, "skipped": 1}
    assert json.loads(said) == {"batch_id": batch_id, "state": "already imported", **numbers}
    assert (await kit.ledger.audit(batch_id)).ok


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes('{"a": "one\u2028\x85two"}\r\n\n{"b": 1}\n'.encode())
    found, _ = read_json_lines(str(file))
    assert found == {1: {"a": "one\u2028\x85two"}, 3: {"b": 1}}
