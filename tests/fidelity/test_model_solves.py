"""The example tasks on real desktops, decided by a model over HTTP, once per protocol: same scores as by script.

The model's replies come from the example script, put into each protocol's words; its tokens are real.
A long episode in full size shows that what is sent are the newest screens of a desktop that changes with every step.
"""

import ast
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.config.settings import PROJECT_ROOT
from rollbook.evidence.verify import verify
from rollbook.export.training import export_training
from tests.doubles.model_server import Call, Reply
from tests.fidelity.conftest import EXAMPLES, example
from tests.support.model_server import Scenario, code, model_policy, model_system, recorded
from tests.support.system import System, WorkerProcess

pytestmark = pytest.mark.slow

SCRIPT: dict[str, Any] = example("scripts/quickstart.json")["tasks"]
STATUS = {"DONE": "success", "FAIL": "failure"}


def in_sections(actions: list[str]) -> str:
    """A reply of the protocols that write code."""
    if actions == ["WAIT"]:
        return code("computer.wait()")
    if actions[0] in STATUS:
        return code(f'computer.terminate(status="{STATUS[actions[0]]}")')
    return code("\n".join("time.sleep(1)" if action == "WAIT" else action for action in actions))


def as_tool_calls(actions: list[str]) -> Reply:
    """A reply of computer-tool-v1."""
    return Reply("Next step.", tool_calls=[{"name": "computer", "arguments": _arguments(one)} for one in actions])


def _arguments(action: str) -> dict[str, Any]:
    if action in STATUS:
        return {"action": "terminate", "status": STATUS[action]}
    if action == "WAIT":
        return {"action": "wait"}
    call = ast.parse(action, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    values = [ast.literal_eval(argument) for argument in call.args]
    if call.func.attr == "write":
        return {"action": "type", "text": values[0]}
    return {"action": "keypress", "keys": values}


PROTOCOLS = {
    "pyautogui-code-v1": in_sections,
    "computer-tool-v1": as_tool_calls,
    "nano-omni-style-v1": in_sections,
}


@pytest.fixture(scope="module")
async def said() -> Scenario:
    return Scenario()


@pytest.fixture(scope="module")
async def system(
    scratch: Path,
    ledger_url: str,
    temporal_address: str,
    deployment_id: str,
    desktop_image: str,
    said: Scenario,
) -> AsyncIterator[System]:
    more: dict[str, Any] = {"desktop_image": desktop_image, "max_desktops": 2, "heartbeat_s": 30}
    async with model_system(scratch / "solves", ledger_url, temporal_address, deployment_id, said, **more) as system:
        await system.register_directory("quickstart", EXAMPLES / "quickstart")
        yield system


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_quickstart_by_a_model(system: System, said: Scenario, protocol: str, tmp_path: Path) -> None:
    words: Any = PROTOCOLS[protocol]
    said.calls = []
    said.answer = lambda call: words(_scripted(call))
    batch = f"by-{protocol}"
    options = {"max_image_pixels": 1_000_000} if protocol == "computer-tool-v1" else {}
    spec = example("batches/quickstart.json") | {"policy": model_policy(protocol=protocol, options=options)}
    result = await system.run_batch(spec, batch)
    assert (result.state, result.counts.admitted) == ("complete", 6)
    attempts = await recorded(system, batch)
    endings = {
        one.rollout["task_id"]: {name: one.outcome[name] for name in ("termination_reason", "score")}
        for one in attempts
        if one.outcome is not None
    }
    assert endings == example("quickstart/expected.json")
    for one in attempts:
        proof = await verify(one, system.artifacts)
        assert proof.ok, proof.mismatches
        assert proof.prompts_equal == proof.replies_equal == proof.images_equal == len(one.calls)
    sizes = {(picture.width, picture.height) for call in said.calls for picture in call.pictures}
    assert sizes == {(1333, 750)} if options else sizes == {(1920, 1080)}
    report = await system.audit(batch)
    assert report.ok, report.findings
    manifest = await export_training(system.ledger, system.artifacts, batch, tmp_path / "rows.jsonl")
    assert manifest["rows"] == len(said.calls)
    assert manifest["rollouts_with_complete_evidence"] == 6
    await _commands(system, batch, attempts[0].key, tmp_path)


async def test_40_steps_have_the_3_newest_screens_in_each_request(system: System, said: Scenario) -> None:
    """On a real desktop, in full size: three images of 1920 by 1080 in every request from the third on."""
    said.calls = []
    said.answer = lambda call: f"I write on.\n```python\npyautogui.write('{call.step}, ')\n```"
    changes = {
        "tasks": {"ids": ["guest-list"]},
        "policy": model_policy(protocol="pyautogui-plain-v1"),
        "limits": {"max_steps": 40, "deadline_s": 600},
        "settle": {"after_setup_s": 0.5, "after_action_s": 0.2, "before_evaluation_s": 0.5},
    }
    await system.run_batch(example("batches/quickstart.json") | changes, "forty")
    [attempt] = await recorded(system, "forty")
    assert attempt.outcome is not None
    assert (attempt.attempt_index, attempt.outcome["termination_reason"]) == (1, "max_steps")
    newest = [call.pictures[-1].sha256 for call in said.calls]
    assert len(newest) == len(set(newest)) == 40, "every step changes the screen"
    for number, call in enumerate(said.calls, 1):
        assert [picture.sha256 for picture in call.pictures] == newest[max(0, number - 3) : number]
        assert {(picture.width, picture.height) for picture in call.pictures} == {(1920, 1080)}
    proof = await verify(attempt, system.artifacts)
    assert proof.ok, proof.mismatches
    assert proof.prompts_equal == proof.images_equal == 40
    report = await system.audit("forty")
    assert report.ok, report.findings


def _scripted(call: Call) -> list[str]:
    steps = SCRIPT[call.task]["steps"]
    actions: list[str] = steps[min(call.step, len(steps)) - 1]["actions"]
    return actions


async def _commands(system: System, batch: str, rollout: str, directory: Path) -> None:
    """Input as a person would type it."""
    shown = await _rollbook(system, "show", rollout, "--json")
    assert json.loads(shown)["admitted"]
    assert "evidence verified" in await _rollbook(system, "evidence", "verify", rollout)
    assert json.loads(await _rollbook(system, "evidence", "trace", rollout))["exact"] is not None
    await _rollbook(system, "export", "training", batch, "--out", str(directory / "cli.jsonl"))
    await _rollbook(system, "export", "gym", batch, "--out", str(directory / "gym.jsonl"))
    there = sorted(await asyncio.to_thread(os.listdir, directory))
    assert "cli.jsonl.manifest.json" in there
    assert "gym_aggregate_metrics.json" in there
    same = [(directory / name).read_bytes() for name in ("cli.jsonl", "rows.jsonl")]
    assert same[0] == same[1]


async def _rollbook(system: System, *arguments: str) -> str:
    address = system.client.service_client.config.target_host
    environment = WorkerProcess(system.settings, address, system.settings.state_dir / "cli.log").environment()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rollbook.cli.main", *arguments),
        env=environment,
        cwd=PROJECT_ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (arguments, err.decode())
    return out.decode()
