"""The `rollbook` command on a real ledger, a real Temporal and a worker, on the do-nothing desktop.

Most commands run in this process (`rollbook.cli.main.run`); exits of the interpreter are tested with processes.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import docker
import pytest

from rollbook.cli import main, submit
from tests.support.ledger import behind_the_guards
from tests.support.system import System, as_login, null_spec, running_system, small_tasks, system_settings

FIVE = {f"t{number:03d}" for number in range(5)}


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str) -> AsyncIterator[System]:
    settings = system_settings(scratch / "cli", ledger_url, deployment_id)
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("five", small_tasks(5))
        yield system


@dataclass
class Shown:
    """The output of a command and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Rollbook = Callable[..., Awaitable[Shown]]


@pytest.fixture
def environment(system: System, temporal_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CLI finds this module's servers the way it finds any: by variables."""
    for name, value in as_login(system.settings, "operator").environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_address)


@pytest.fixture
def rollbook(environment: None, capsys: pytest.CaptureFixture[str]) -> Rollbook:
    async def run(*arguments: str) -> Shown:
        capsys.readouterr()
        code = await asyncio.to_thread(main.run, list(arguments))
        shown = capsys.readouterr()
        return Shown(code, shown.out, shown.err)

    return run


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[..., str]:
    def write(**changes: Any) -> str:
        path = tmp_path / f"spec-{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(null_spec("five") | changes))
        return str(path)

    return write


SLOW = {"policy": {"kind": "noop", "waits": 100}, "limits": {"max_steps": 200}, "concurrency": 1}


async def test_a_shell_learns_where_to_start_batches(rollbook: Rollbook, system: System, temporal_address: str) -> None:
    shown = await rollbook("env")
    assert shown.out.splitlines() == [
        f"export TEMPORAL_ADDRESS={temporal_address}",
        "export TEMPORAL_NAMESPACE=default",
        f"export ROLLBOOK_TASK_QUEUE={system.settings.task_queue_orchestrate}",
    ]


async def test_a_batch_from_submit_to_audit(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    file = spec_file(samples=2, note="two each")
    first = await rollbook("submit", file, "--batch-id", "cli-1", "--watch", "--json")
    assert (first.code, first.json["state"], first.json["planned"]) == (0, "complete", 10)
    counts = {name: first.json[name] for name in ("admitted", "masked", "running", "waiting")}
    assert counts == {"admitted": 10, "masked": 0, "running": 0, "waiting": 0}
    again = await rollbook("submit", file, "--batch-id", "cli-1")
    assert again.code == 0
    assert "already complete" in again.out
    assert (await rollbook("watch", "cli-1")).code == 0

    status = (await rollbook("status", "cli-1", "--json")).json
    assert (status["state"], status["note"], status["null_desktop"]) == ("complete", "two each", True)
    assert [row["planned"] for row in status["domains"]] == [10]
    listed = (await rollbook("status", "--json")).json
    assert "cli-1" in [row["batch_id"] for row in listed]

    report = (await rollbook("report", "cli-1", "--rollouts", "--json")).json
    assert {row["task_id"] for row in report["rollouts"]} == FIVE
    assert report["scoreboard"][-1]["domain"] == "(all)"
    assert [row["k"] for row in report["pass_k"]] == [1, 2]

    audit = await rollbook("audit", "cli-1", "--json")
    assert (audit.code, audit.json["ok"], audit.json["final"]) == (0, True, 10)


async def test_what_people_see(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    assert (await rollbook("submit", spec_file(), "--batch-id", "cli-2", "--watch")).code == 0
    status = await rollbook("status", "cli-2")
    assert "state:" in status.out
    assert "os" in status.out
    report = await rollbook("report", "cli-2")
    assert "these scores mean nothing" in report.out
    assert "OF PLANNED" in report.out
    show = await rollbook("show", "cli-2/os/t003/0")
    assert "instruction: task 3" in show.out
    assert "admitted: valid_evaluated_outcome" in show.out
    assert "claimed" in show.out
    assert "audit clean" in (await rollbook("audit", "cli-2")).out


async def test_a_digest_that_was_kept_is_compared(
    rollbook: Rollbook, system: System, spec_file: Callable[..., str]
) -> None:
    assert (await rollbook("submit", spec_file(), "--batch-id", "cli-kept", "--watch")).code == 0
    digest = (await system.client.get_workflow_handle("cli-kept").result())["digest"]
    audit = await rollbook("audit", "cli-kept", "--expect", digest)
    assert (audit.code, f"digest {digest}: as it was" in audit.out) == (0, True)
    key = "cli-kept/os/t000/0"
    assert (await rollbook("mask", key, "--reason", "popup")).code == 0
    audit = await rollbook("audit", "cli-kept", "--expect", digest)
    assert audit.code == 0, "what was decided later is explained"
    assert "note: appended: cli-kept: since completion 1" in audit.out
    other = await rollbook("audit", "cli-kept", "--expect", "0" * 64)
    assert (other.code, "expected_digest" in other.out) == (1, True)
    assert (await rollbook("audit", "cli-kept", "--expect", "5f0c")).code == 2


async def test_rollouts_are_found_by_a_part_of_their_key(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    await rollbook("submit", spec_file(samples=2), "--batch-id", "cli-3", "--watch")
    shown = (await rollbook("show", "cli-3/os/t004/1", "--json")).json
    assert shown["rollout_key"] == "cli-3/os/t004/1"
    assert shown["attempts"][-1]["termination_reason"]
    assert shown["steps_taken"][0]["step"] == 0
    several = await rollbook("show", "cli-3/os/t004")
    assert several.code == 2
    assert "cli-3/os/t004/0, cli-3/os/t004/1" in several.err
    nothing = await rollbook("show", "cli-3/os/t009")
    assert nothing.code == 2


async def test_another_contract_is_refused(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    await rollbook("submit", spec_file(), "--batch-id", "cli-4", "--watch")
    other = await rollbook("submit", spec_file(limits={"max_steps": 3}, seed=4), "--batch-id", "cli-4")
    assert other.code == 2
    assert other.out == ""
    assert "limits.max_steps: 15 -> 3; seed: 0 -> 4" in other.err


async def test_specs_that_cannot_run(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    for changes, said in (
        ({"task_set": "nope"}, "task_set: 'nope' is not registered (registered: five)"),
        ({"tasks": {"ids": ["t00"]}}, "tasks.ids: the task set has no task 't00'"),
        ({"policy": {"kind": "scripted", "script": "nope"}}, "policy.script: 'nope' is not registered"),
        ({"samplez": 1}, "samplez: unknown key"),
    ):
        shown = await rollbook("submit", spec_file(**changes), "--json")
        assert (shown.code, shown.out) == (2, "")
        assert said in shown.err


async def test_a_running_batch_keeps_its_selection(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    slow = dict(SLOW, tasks={"ids": ["t000", "t001"]})
    await rollbook("submit", spec_file(**slow), "--batch-id", "cli-5")
    same = await rollbook("submit", spec_file(**slow), "--batch-id", "cli-5", "--json")
    assert (same.code, same.json["state"]) == (0, "running")
    more = dict(SLOW, tasks={"ids": ["t000", "t001", "t002"]})
    refused = await rollbook("submit", spec_file(**more), "--batch-id", "cli-5")
    assert refused.code == 2
    assert "set extend to true" in refused.err
    extended = await rollbook("submit", spec_file(**more, extend=True), "--batch-id", "cli-5")
    assert extended.code == 2
    assert "rollbook stop cli-5" in extended.err
    faster = await rollbook("submit", spec_file(**{**slow, "concurrency": 3}), "--batch-id", "cli-5")
    assert faster.code == 0
    assert "set-concurrency" in faster.err
    assert (await rollbook("cancel", "cli-5", "--yes")).code == 0


async def test_control_and_resume(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    file = spec_file(**SLOW | {"policy": {"kind": "noop", "waits": 30}}, samples=2)
    await rollbook("submit", file, "--batch-id", "cli-6")
    paused = await rollbook("pause", "cli-6", "--reason", "a look", "--json")
    assert (paused.code, paused.json["taken_up"], paused.json["control"]["paused"]) == (0, True, True)
    assert (await rollbook("status", "cli-6", "--json")).json["state"] == "paused"
    assert "rollbook resume cli-6" in (await rollbook("status", "cli-6")).out
    frozen = await rollbook("pause", "cli-6", "--freeze")
    assert frozen.code == 0
    assert (await rollbook("status", "cli-6", "--json")).json["state"] == "frozen"
    assert (await rollbook("set-concurrency", "cli-6", "7", "--json")).json["control"]["concurrency"] == 7
    assert (await rollbook("resume", "cli-6")).code == 0
    assert (await rollbook("set-concurrency", "cli-6", "1")).code == 0
    assert (await rollbook("stop", "cli-6")).code == 0
    stopped = await rollbook("watch", "cli-6", "--json")
    assert (stopped.code, stopped.json["complete"]) == (1, False)
    assert stopped.json["waiting"] > 0
    late = await rollbook("pause", "cli-6")
    assert late.code == 1
    assert "not running: stopped" in late.err
    ended = await rollbook("cancel", "cli-6", "--yes", "--json")
    assert (ended.code, ended.json["closed"], ended.json["waiting"], ended.json["planned"]) == (0, True, 0, 10)
    assert (await rollbook("status", "cli-6", "--json")).json["state"] == "cancelled"
    assert (await rollbook("audit", "cli-6")).code == 0
    twice = await rollbook("cancel", "cli-6", "--yes")
    assert (twice.code, "is not running: cancelled" in twice.err) == (1, True)


async def test_stop_and_resume(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    file = spec_file(**SLOW | {"policy": {"kind": "noop", "waits": 30}}, samples=2)
    await rollbook("submit", file, "--batch-id", "cli-6b")
    assert (await rollbook("stop", "cli-6b")).code == 0
    assert (await rollbook("watch", "cli-6b")).code == 1
    again = await rollbook("submit", file, "--batch-id", "cli-6b")
    assert "started: 10 rollouts planned" in again.out
    assert (await rollbook("set-concurrency", "cli-6b", "10")).code == 0
    assert (await rollbook("watch", "cli-6b")).code == 0
    assert (await rollbook("audit", "cli-6b")).code == 0


async def test_cancel_then_rerun_what_is_masked(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    await rollbook("submit", spec_file(**SLOW), "--batch-id", "cli-7")
    unasked = await rollbook("cancel", "cli-7")
    assert unasked.code == 2
    assert "--yes" in unasked.err
    cancelled = await rollbook("cancel", "cli-7", "--yes", "--reason", "wrong model", "--json")
    assert (cancelled.code, cancelled.json["closed"], cancelled.json["workflow"]) == (0, True, "canceled")
    assert (await rollbook("watch", "cli-7")).code == 1
    assert (await rollbook("status", "cli-7", "--json")).json["state"] == "cancelled"
    assert (await rollbook("set-concurrency", "cli-7", "5")).code == 1

    again = await rollbook("submit", spec_file(**SLOW), "--batch-id", "cli-7", "--watch", "--json")
    assert (again.code, again.json["state"]) == (1, "cancelled")
    again = await rollbook("submit", spec_file(**SLOW), "--batch-id", "cli-7")
    assert again.code == 0
    assert "is cancelled: 5 of 5 rollouts final" in again.out
    assert "rollbook rerun cli-7 --masked" in again.out
    assert (await rollbook("watch", "cli-7")).code == 1
    assert (await rollbook("status", "cli-7", "--json")).json["state"] == "cancelled"
    assert {row["batch_id"]: row["state"] for row in (await rollbook("status", "--json")).json}["cli-7"] == "cancelled"

    rerun = await rollbook("rerun", "cli-7", "--masked", "--reason", "cancelled by mistake", "--json")
    assert (rerun.code, len(rerun.json["rerun"])) == (0, cancelled.json["masked"])
    await rollbook("set-concurrency", "cli-7", "5")
    assert (await rollbook("watch", "cli-7")).code == 0
    counts = (await rollbook("status", "cli-7", "--json")).json
    assert (counts["admitted"], counts["masked"]) == (5, 0)
    assert (await rollbook("audit", "cli-7")).code == 0
    nothing = await rollbook("rerun", "cli-7", "--masked", "--reason", "again")
    assert (nothing.code, "nothing to run again" in nothing.out) == (0, True)


async def test_decisions_after_the_fact(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    await rollbook("submit", spec_file(), "--batch-id", "cli-8", "--watch")
    before = (await rollbook("show", "cli-8/os/t001", "--json")).json
    masked = await rollbook("mask", "cli-8/os/t001", "--reason", "clock was wrong", "--json")
    assert (masked.code, masked.json["admitted"]) == (0, False)
    after = (await rollbook("show", "cli-8/os/t001", "--json")).json
    assert (after["masked"], after["admission_reason"]) == (True, "clock was wrong")
    assert (after["score"], after["reward"]) == (before["score"], before["reward"])
    assert (await rollbook("status", "cli-8", "--json")).json["masked_reasons"] == [
        {"reason": "clock was wrong", "rollouts": 1}
    ]
    assert (await rollbook("admit", "cli-8/os/t001", "--reason", "it was right")).code == 0
    assert (await rollbook("mask", "cli-8/os/t001", "--reason", " ")).code == 2
    assert (await rollbook("audit", "cli-8")).code == 0


async def test_a_key_in_a_reason_is_not_kept(
    rollbook: Rollbook, spec_file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, endpoints = "sk-Q7-typed-by-mistake-x9", tmp_path / "endpoints.toml"
    endpoints.write_text(f'[endpoints.vllm]\nbase_url = "http://127.0.0.1:9/v1"\napi_key = "{key}"\n')
    endpoints.chmod(0o600)
    monkeypatch.setenv("ROLLBOOK_ENDPOINTS_FILE", str(endpoints))
    await rollbook("submit", spec_file(), "--batch-id", "cli-14", "--watch")
    masked = await rollbook("mask", "cli-14/os/t001", "--reason", f"the key {key} was wrong")
    assert masked.code == 0, masked.err
    shown = await rollbook("show", "cli-14/os/t001", "--json")
    assert shown.json["admission_reason"].startswith("the key ")
    assert key not in masked.out + shown.out


async def test_admitted_rollouts_run_again_only_on_request(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    await rollbook("submit", spec_file(), "--batch-id", "cli-9", "--watch")
    key = "cli-9/os/t002/0"
    refused = await rollbook("rerun", "cli-9", "--rollout", key, "--reason", "better luck")
    assert refused.code == 2
    assert "--supersede" in refused.err
    again = await rollbook(
        *("rerun", "cli-9", "--rollout", key, "--reason", "new desktop", "--supersede", "--watch", "--json")
    )
    assert (again.code, again.json["state"], again.json["rerun"]) == (0, "complete", [key])
    assert (again.json["admitted"], again.json["running"], again.json["waiting"]) == (5, 0, 0)
    assert len((await rollbook("show", key, "--json")).json["attempts"]) == 2
    assert (await rollbook("report", "cli-9", "--json")).json["scoreboard"][-1]["superseded"] == 1
    unclear = await rollbook("rerun", "cli-9", "--reason", "x")
    assert unclear.code == 2


async def test_an_audit_finds_a_deleted_artifact(
    rollbook: Rollbook, spec_file: Callable[..., str], system: System
) -> None:
    await rollbook("submit", spec_file(), "--batch-id", "cli-10", "--watch")
    digest = (await rollbook("show", "cli-10/os/t000", "--json")).json["steps_taken"][0]["screenshot_sha256"]
    path = Path(unquote(urlparse(system.settings.artifacts).path)) / digest[:2] / digest
    kept = path.read_bytes()
    path.unlink()
    try:
        audit = await rollbook("audit", "cli-10")
        assert audit.code == 1
        assert digest in audit.out
        assert "audit failed" in audit.out
    finally:
        path.write_bytes(kept)
    assert (await rollbook("audit", "cli-10")).code == 0


async def test_an_audit_finds_a_changed_score(
    rollbook: Rollbook, spec_file: Callable[..., str], system: System
) -> None:
    await rollbook("submit", spec_file(), "--batch-id", "cli-13", "--watch")
    assert (await rollbook("audit", "cli-13")).code == 0
    key = "cli-13/os/t000/0"
    change = "UPDATE outcome SET score = :score, reward = :score WHERE rollout_key = :key"
    assert await behind_the_guards(system.ledger, change, key=key, score=0.0) == 1
    audit = await rollbook("audit", "cli-13")
    assert audit.code == 1
    assert key in audit.out
    assert key in (await rollbook("audit", "cli-13", "--json")).out
    await behind_the_guards(system.ledger, change, key=key, score=1.0)
    assert (await rollbook("audit", "cli-13")).code == 0


async def test_without_a_worker_submit_says_so(
    rollbook: Rollbook, spec_file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "REGISTRATION_S", 1.0)
    monkeypatch.setenv("ROLLBOOK_TASK_QUEUE", "nobody-polls-this")
    shown = await rollbook("submit", spec_file(), "--batch-id", "cli-11")
    assert shown.code == 1
    assert "no worker took it up" in shown.err


async def test_unknown_batches(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    await rollbook("submit", spec_file(), "--batch-id", "cli-known", "--watch")
    for command in (
        ("status", "cli-knwn"),
        ("watch", "cli-knwn"),
        ("report", "cli-knwn"),
        ("audit", "cli-knwn"),
        ("stop", "cli-knwn"),
        ("cancel", "cli-knwn", "--yes"),
        ("rerun", "cli-knwn", "--masked", "--reason", "x"),
    ):
        shown = await rollbook(*command)
        assert (shown.code, shown.out) == (2, ""), command
        assert "cli-knwn" in shown.err, command
    for name in ("status", "watch", "report", "audit"):
        assert "did you mean cli-known" in (await rollbook(name, "cli-knwn")).err, name


async def test_dry_run_resolves_and_starts_nothing(rollbook: Rollbook, spec_file: Callable[..., str]) -> None:
    shown = await rollbook("submit", spec_file(samples=3), "--batch-id", "cli-12", "--dry-run")
    assert shown.code == 0
    assert shown.json["spec"]["samples"] == 3
    assert shown.json["spec"]["limits"]["max_steps"] == 15
    assert (await rollbook("status", "cli-12")).code == 2
    await rollbook("submit", spec_file(samples=3), "--batch-id", "cli-12", "--watch")
    assert (await rollbook("status", "cli-12", "--json")).json["contract_digest"] == shown.json["contract_digest"]


async def test_the_catalog(rollbook: Rollbook, tmp_path: Path) -> None:
    folder = tmp_path / "set" / "examples" / "os"
    folder.mkdir(parents=True)
    good = {"id": "good", "instruction": "x", "config": [], "evaluator": {"func": "infeasible"}}
    odd = {"id": "odd", "instruction": "x", "config": [{"type": "no_such_step"}], "evaluator": {"func": "no_metric"}}
    for document in (good, odd):
        (folder / f"{document['id']}.json").write_text(json.dumps(document))
    (tmp_path / "set" / "test_all.json").write_text(json.dumps({"os": ["good", "odd"]}))

    strict = await rollbook("tasks", "register", str(tmp_path / "set"), "--name", "odd-set", "--strict")
    assert strict.code == 2
    assert "os/odd" in strict.err
    lenient = await rollbook("tasks", "register", str(tmp_path / "set"), "--name", "odd-set", "--json")
    assert (lenient.code, lenient.json["tasks"], list(lenient.json["problems"])) == (0, 2, ["os/odd"])
    assert "warning: os/odd" in lenient.err
    assert "odd-set" in [row["name"] for row in (await rollbook("tasks", "ls", "--json")).json]
    assert (await rollbook("tasks", "register", str(tmp_path / "set"), "--name", "no/slash")).code == 2

    script = tmp_path / "script.json"
    script.write_text(json.dumps({"tasks": {"good": {"steps": [{"actions": ["DONE"]}]}}}))
    first = await rollbook("scripts", "register", str(script), "--name", "say-done", "--json")
    again = await rollbook("scripts", "register", str(script), "--name", "say-done", "--json")
    assert first.json == again.json
    assert [row["tasks"] for row in (await rollbook("scripts", "ls", "--json")).json if row["name"] == "say-done"] == [
        1
    ]
    script.write_text(json.dumps({"tasks": {"good": {"stepz": []}}}))
    wrong = await rollbook("scripts", "register", str(script), "--name", "say-done")
    assert wrong.code == 2
    assert "stepz" in wrong.err


async def test_sql_reads_and_never_writes(rollbook: Rollbook) -> None:
    rows = await rollbook("sql", "--json", "-c", "SELECT 1 AS one, 'NaN'::float8 AS odd")
    assert rows.json == [{"one": 1, "odd": "nan"}]
    refused = await rollbook("sql", "--json", "-c", "DELETE FROM sighting")
    assert refused.code == 2
    assert "read-only" in refused.err


async def test_reconcile_by_hand(rollbook: Rollbook) -> None:
    shown = await rollbook("reconcile", "--min-age", "3600", "--json")
    assert shown.code == 0, shown.err
    assert shown.json["closed"] == []


async def test_sandboxes_of_another_deployment_are_not_listed(
    rollbook: Rollbook, docker_client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_DEPLOYMENT_ID", "cli-nobody")
    assert (await rollbook("sandboxes", "ls", "--json")).json == []
    assert (await rollbook("sandboxes", "reap", "--dry-run", "--json")).json["removed"] == []


@pytest.mark.slow
async def test_short_client_processes_never_crash_at_exit(
    system: System, environment: None, rollbook: Rollbook, spec_file: Callable[..., str]
) -> None:
    """Without an explicit exit, a share of short Temporal clients dies while the interpreter shuts down."""
    await rollbook("submit", spec_file(), "--batch-id", "cli-exit", "--watch")
    busy = asyncio.Semaphore(3)

    async def once() -> tuple[int | None, bytes]:
        async with busy:
            process = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).parent / "rollbook"),
                *("status", "cli-exit", "--json"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(os.environ),
            )
            out, err = await process.communicate()
            assert json.loads(out)["state"] == "complete"
            return process.returncode, err

    assert await asyncio.gather(*(once() for _ in range(20))) == [(0, b"")] * 20
