"""Batches from the plain `temporal` command line, and from payloads as tctl sends them."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue

from models import names
from tests.support.system import System, null_spec, running_system, small_tasks, system_settings
from tests.support.waiting import until

TEMPORAL = Path(sys.executable).with_name("temporal")
SLOW = {"policy": {"kind": "noop", "waits": 8}, "limits": {"max_steps": 12}, "samples": 2, "concurrency": 1}


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str) -> AsyncIterator[System]:
    settings = system_settings(scratch / "cli", ledger_url, deployment_id, pump_slice_s=0.5, pump_slices_per_run=2)
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("three", small_tasks(3))
        await system.register_tasks("web", [{**small_tasks(1)[0], "id": "w0", "proxy": True}])
        yield system


async def another_run(system: System, batch_id: str) -> None:
    """Wait until the batch workflow has continued as new: several slices have passed."""
    handle = system.client.get_workflow_handle(batch_id)
    before = (await handle.describe()).run_id

    async def continued() -> bool:
        return (await handle.describe()).run_id != before

    await until("it continues as new", continued)


async def count(system: System, table: str, batch_id: str) -> int:
    """Rows of a batch in a table."""
    async with system.ledger.engine.connect() as connection:
        query = text(f"SELECT count(*) FROM {table} WHERE rollout_key LIKE :prefix")
        return int((await connection.execute(query, {"prefix": f"{batch_id}/%"})).scalar_one())


class Cli:
    """The `temporal` program against the session's server."""

    def __init__(self, address: str, queue: str, directory: Path) -> None:
        self._address, self._queue, self._directory = address, queue, directory

    async def run(self, *arguments: str) -> tuple[int, str]:
        program = str(TEMPORAL) if TEMPORAL.exists() else shutil.which("temporal")
        assert program is not None
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            "--address",
            self._address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def start(self, verb: str, batch_id: str, spec: Any, *more: str) -> tuple[int, str]:
        file = self._directory / f"{batch_id}.json"
        await asyncio.to_thread(file.write_text, spec if isinstance(spec, str) else json.dumps(spec))
        return await self.run(
            "workflow", verb, "--type", "BenchmarkBatch", "--task-queue", self._queue, "--workflow-id", batch_id,
            "--input-file", str(file), *more,
        )  # fmt: skip

    async def signal(self, batch_id: str, name: str, value: Any = None) -> None:
        data = [] if value is None else ["--input", json.dumps(value)]
        code, output = await self.run("workflow", "signal", "--workflow-id", batch_id, "--name", name, *data)
        assert code == 0, output


@pytest.fixture
def cli(system: System, temporal_address: str, tmp_path: Path) -> Cli:
    return Cli(temporal_address, system.settings.task_queue_orchestrate, tmp_path)


async def test_start_runs_to_completion_and_fail_existing_refuses(system: System, cli: Cli) -> None:
    code, output = await cli.start("start", "cli-1", null_spec("three", **SLOW), "--fail-existing")
    assert code == 0, output
    code, output = await cli.start("start", "cli-1", null_spec("three"), "--fail-existing")
    assert code == 1
    result = await system.client.get_workflow_handle("cli-1").result()
    assert result["counts"]["admitted"] == 6
    assert (await system.audit("cli-1")).ok


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("bad-key", null_spec("three", concurency=2), "concurency: unknown key"),
        ("bad-type", null_spec("three", samples="many"), "samples: "),
        ("bad-nested", null_spec("three", limits={"max_steps": 0}), "limits.max_steps: "),
        ("bad-task", null_spec("three", tasks={"ids": ["t00"]}), "tasks.ids: "),
        ("bad-set", null_spec("thre"), "task_set: "),
        ("bad-domain", null_spec("three", tasks={"domains": ["oss"]}), "tasks.domains: "),
        ("bad-policy", {**null_spec("three"), "policy": {"kind": "scripted", "script": "nowhere"}}, "nowhere"),
        ("bad-egress", null_spec("web", desktop={"provider": "null", "egress": "none"}), "desktop.egress: "),
        ("bad-provider", null_spec("three", desktop={"provider": "e2b"}), "desktop.provider: "),
        ("no-object", "[1, 2]", "one JSON object"),
        ("no-policy", {"task_set": "three"}, "policy: required"),
    ],
)
async def test_bad_input_fails_at_once_and_names_the_field(
    system: System, cli: Cli, name: str, spec: Any, message: str
) -> None:
    code, output = await cli.start("execute", name, spec)
    assert code != 0
    assert message in " ".join(output.split()), output

    assert (await system.ledger.counts(name)).planned == 0


async def test_an_episode_started_by_hand_without_a_rollout_ends_at_once(cli: Cli) -> None:
    code, output = await cli.run(
        "workflow", "execute", "--type", "Episode", "--task-queue", cli._queue, "--workflow-id", "by-hand",
        "--input", "{}",
    )  # fmt: skip
    assert code != 0
    assert "rollout_key: required" in " ".join(output.split()), output


async def test_two_inputs_and_no_input_are_refused(cli: Cli) -> None:
    code, output = await cli.start("execute", "two-inputs", null_spec("three"), "--input", "{}")
    assert code != 0, output
    code, output = await cli.run(
        "workflow", "execute", "--type", "BenchmarkBatch", "--task-queue", cli._queue, "--workflow-id", "no-input"
    )
    assert code != 0
    assert "one JSON object" in " ".join(output.split())


async def test_a_payload_as_tctl_sends_it(system: System) -> None:
    """tctl re-encodes: floats for integers, sorted keys, escaped HTML."""
    spec = null_spec("three", samples=2, note="<b>&</b>")
    text = json.dumps(_floats(spec), sort_keys=True)
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    payload = Payload(metadata={"encoding": b"json/plain"}, data=text.encode())
    handle = await system.client.start_workflow(
        names.BATCH, RawValue(payload), id="tctl-1", task_queue=system.settings.task_queue_orchestrate
    )
    result = await handle.result()
    assert (result["state"], result["counts"]["planned"]) == ("complete", 6)
    # the same batch: the contract is that of the parsed spec, not of its bytes
    assert (await system.run_batch(spec, "tctl-1")).state == "already complete"


def _floats(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return float(value)
    if isinstance(value, dict):
        return {key: _floats(one) for key, one in value.items()}
    return value


async def test_pause_resume_set_concurrency_and_stop(system: System, cli: Cli) -> None:
    await cli.start("start", "cli-2", null_spec("three", **{**SLOW, "samples": 6}))
    ledger = system.ledger

    async def counts(condition: Any) -> bool:
        return bool(condition(await ledger.counts("cli-2")))

    await until("one runs", lambda: counts(lambda c: c.running == 1))
    await cli.signal("cli-2", "set_concurrency", 3)
    await until("three run", lambda: counts(lambda c: c.running == 3))
    await cli.signal("cli-2", "pause")
    await until("none runs", lambda: counts(lambda c: c.running == 0))
    waiting = (await ledger.counts("cli-2")).waiting
    assert waiting > 0
    for _ in range(2):  # it continues as new, and starts nothing
        await another_run(system, "cli-2")
    assert (await ledger.counts("cli-2")).waiting == waiting
    await cli.signal("cli-2", "resume", {"reason": "lunch is over"})
    await until("some run again", lambda: counts(lambda c: c.waiting < waiting))
    await cli.signal("cli-2", "stop")
    stopped = await system.client.get_workflow_handle("cli-2").result()
    assert stopped["state"] == "stopped"
    code, output = await cli.start("execute", "cli-2", null_spec("three", **{**SLOW, "samples": 6, "concurrency": 8}))
    assert code == 0, output
    assert (await ledger.counts("cli-2")).admitted == 18
    assert (await system.audit("cli-2")).ok


async def test_signals_before_the_first_workflow_task(
    system: System, scratch: Path, ledger_url: str, temporal_address: str
) -> None:
    """No worker polls yet: pause and set_concurrency wait in the history and count before anything starts."""
    settings = system_settings(scratch / "late", ledger_url, "late", pump_slice_s=0.5, pump_slices_per_run=2)
    async with running_system(settings, temporal_address, workers=False) as late:
        handle = await late.start_batch(null_spec("three", samples=2), "early")
        await handle.signal("set_concurrency", 5)
        await handle.signal("pause", {"reason": "too early"})
    async with running_system(settings, temporal_address) as late:

        async def registered() -> bool:
            return (await late.ledger.counts("early")).planned == 6 and (
                await late.ledger.batch_control("early")
            ).paused

        await until("it is registered and paused", registered)
        await another_run(late, "early")
        counts = await late.ledger.counts("early")
        assert (counts.planned, counts.waiting) == (6, 6)
        control = await late.ledger.batch_control("early")
        assert (control.paused, control.concurrency) == (True, 5)
        await handle.signal("resume")
        assert (await handle.result()).counts.admitted == 6


@pytest.mark.parametrize(("verb", "planned"), [("stop", 6), ("cancel", 0)])
async def test_an_end_asked_for_before_the_first_workflow_task(
    cli: Cli, scratch: Path, ledger_url: str, temporal_address: str, verb: str, planned: int
) -> None:
    """No worker polls yet. Stopped: every row is planned, none ran. Cancelled: nothing is planned."""
    batch_id, late_name = f"early-{verb}", f"late-{verb}"
    settings = system_settings(scratch / late_name, ledger_url, late_name, pump_slice_s=1)
    async with running_system(settings, temporal_address, workers=False) as late:
        handle = await late.start_batch(null_spec("three", samples=2), batch_id)
        asked = ("signal", "--name", "stop") if verb == "stop" else ("cancel",)
        code, output = await cli.run("workflow", *asked, "--workflow-id", batch_id)
        assert code == 0, output
    async with running_system(settings, temporal_address) as late:
        if verb == "stop":
            assert (await handle.result()).state == "stopped"
        else:
            with pytest.raises(WorkflowFailureError):
                await handle.result()
            assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
        assert await count(late, "rollout", batch_id) == planned
        assert await count(late, "attempt", batch_id) == 0


async def test_cancel_from_the_command_line(system: System, cli: Cli) -> None:
    await cli.start("start", "cli-3", null_spec("three", **{**SLOW, "policy": {"kind": "noop", "waits": 11}}))

    async def one_runs() -> bool:
        return (await system.ledger.counts("cli-3")).running == 1

    await until("one runs", one_runs)
    code, output = await cli.run("workflow", "cancel", "--workflow-id", "cli-3")
    assert code == 0, output

    async def closed() -> bool:
        counts = await system.ledger.counts("cli-3")
        return counts.planned == 6 and counts.running + counts.waiting == 0

    await until("every row is closed", closed)
    assert (await system.audit("cli-3")).ok
