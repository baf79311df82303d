"""Everything that docs/explanation/hostile-guest.md says a guest can do to its own evaluation, and what it gets for it.

One batch on real desktops: each task is attacked by its own script, and would score 0 if it were left alone.
"""

import io
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
import pytest

from rollbook.config.settings import PROJECT_ROOT
from tests.support.ledger import rows
from tests.support.servers import remove_deployment
from tests.support.system import System, running_system, system_settings

FILE, CHECK = "/home/user/a.txt", "/home/user/check.sh"
READ = {"type": "vm_command_line", "command": ["cat", FILE]}
RUN_SCRIPT = {"type": "vm_command_line", "command": ["bash", CHECK]}
COUNT = {"type": "vm_command_line", "command": ["wc", "-l", FILE]}
FETCH = {"type": "vm_file", "path": FILE, "dest": "a.txt"}
COMMAND_LIMIT_S = 8


def shell(command: str) -> str:
    """An action that runs a shell command."""
    return f"import subprocess; subprocess.run({command!r}, shell=True)"


def root(command: str) -> str:
    """The same as root, as OSWorld's agents can."""
    return shell(f"echo password | sudo -S sh -c {shlex.quote(command)}")


FORGE = (
    "sed -i 's/^    body = json_body()$/    body = json_body()\\n"
    '    if "a.txt" in str(body):\\n'
    '        return {"status": "success", "output": "right\\\\n", "error": "", "returncode": 0}/\' '
    "/opt/rollbook/guest/routes_execute.py"
)
KILL_SERVER = shell("pkill -9 -f guest.app")
CLAIM = """
import json, socket
with socket.socket(socket.AF_UNIX) as records:
    records.connect("/run/rollbook/records.socket")
    records.sendall(json.dumps({"put": "postconfig.claimed", "text": "mine"}).encode() + b"\\n")
    records.recv(1000)
"""
PAUSE = "import time; time.sleep(2)"
EAT = "x = []\nwhile True: x.append(bytearray(2**24))"
TAKE_MEMORY = shell(f"(setsid python3 -c {shlex.quote(EAT)} > /dev/null 2>&1 &)")
TAKE_PROCESSES = shell("(setsid sh -c 'for n in $(seq 600); do sleep 600 & done; wait' > /dev/null 2>&1 &)")

Row = tuple[dict[str, Any], list[str], tuple[str, float | None]]
SCORED_0 = ("agent_done", 0.0)
BROKEN = ("desktop_broken", None)
ROWS: dict[str, Row] = {
    "honest-right": (READ, [shell(f"printf 'right\\n' > {FILE}")], ("agent_done", 1.0)),
    "honest-wrong": (READ, [shell(f"printf 'wrong\\n' > {FILE}")], SCORED_0),
    "pipe": (READ, [f"import os; os.mkfifo({FILE!r})"], SCORED_0),
    "endless-file": (FETCH, [shell(f"truncate -s 100G {FILE}")], SCORED_0),
    "endless-script": (RUN_SCRIPT, [shell(f"echo 'while :; do echo right; done' > {CHECK}")], SCORED_0),
    "program-removed": (COUNT, [root("rm /usr/bin/wc")], SCORED_0),
    "killed-by-root": (READ, [root("kill -9 -1")], BROKEN),
    "display-killed": (READ, [root("pkill -9 Xvfb")], BROKEN),
    "server-killed": (READ, [KILL_SERVER, PAUSE], BROKEN),
    "server-patched": (READ, [root(FORGE), KILL_SERVER, PAUSE], BROKEN),
    "claim-written": (READ, [CLAIM], BROKEN),
    "memory-taken": (READ, [TAKE_MEMORY, PAUSE], SCORED_0),
    "processes-taken": (READ, [TAKE_PROCESSES, PAUSE], BROKEN),
}


def task(name: str, result: dict[str, Any]) -> dict[str, Any]:
    evaluator: dict[str, Any] = {
        "postconfig": [{"type": "execute", "parameters": {"command": ["true"]}}],
        "func": "exact_match",
        "result": result,
        "expected": {"type": "rule", "rules": {"expected": "right\n"}},
    }
    if result is FETCH:
        evaluator |= {"func": "compare_text_file", "expected": FETCH | {"path": "/etc/hostname", "dest": "gold.txt"}}
    return {"id": name, "instruction": "Write right into a.txt.", "config": [], "evaluator": evaluator}


@pytest.fixture(scope="module")
def impatient_image(docker_client: docker.DockerClient, desktop_image: str) -> str:
    """The desktop image, whose guest server ends a command after a few seconds instead of 120."""
    recipe = f"FROM {desktop_image}\nENV ROLLBOOK_GUEST_EXECUTE_TIMEOUT_S={COMMAND_LIMIT_S}\n"
    image, _ = docker_client.images.build(fileobj=io.BytesIO(recipe.encode()), rm=True)
    return str(image.id)


@pytest.fixture(scope="module")
async def system(
    scratch: Path,
    ledger_url: str,
    temporal_address: str,
    deployment_id: str,
    impatient_image: str,
    docker_client: docker.DockerClient,
) -> AsyncIterator[System]:
    own = f"{deployment_id}-hostile"
    settings = system_settings(
        scratch / "hostile", ledger_url, own, desktop_image=impatient_image, max_desktops=4, heartbeat_s=30
    )
    async with running_system(settings, temporal_address) as system:
        yield system
    remove_deployment(docker_client, own)


@pytest.mark.slow
async def test_nothing_is_gained_by_breaking_the_desktop(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.guest.forwarder.MAX_REPLY_BYTES", 32 * 2**20)
    await system.register_tasks("hostile", [task(name, result) for name, (result, _, _) in ROWS.items()])
    scripts = {
        name: {"steps": [*({"actions": [action]} for action in actions), {"actions": ["DONE"]}]}
        for name, (_, actions, _) in ROWS.items()
    }
    await system.register_script("hostile", {"schema_version": 1, "tasks": scripts})
    spec = {
        "task_set": "hostile",
        "policy": {"kind": "scripted", "script": "hostile"},
        "concurrency": 4,
        "settle": {"after_setup_s": 0, "after_action_s": 0.2, "before_evaluation_s": 0},
        "limits": {"evaluate_timeout_s": 60},
        "desktop": {"limits": {"memory_mib": 1500, "pids": 400}},
    }
    await system.run_batch(spec, "hostile")
    query = """
        SELECT task_id, attempts, termination_reason, score, detail FROM rollout_result WHERE batch_id = 'hostile'
    """
    ended = {row["task_id"]: row for row in await rows(system.ledger, query)}
    found = {name: (ended[name]["termination_reason"], ended[name]["score"]) for name in ROWS}
    wanted = {name: result for name, (_, _, result) in ROWS.items()}
    assert found == wanted, {name: row["detail"] for name, row in ended.items() if found[name] != wanted[name]}
    assert {name: row["attempts"] for name, row in ended.items()} == dict.fromkeys(ROWS, 1)

    report = await system.audit("hostile")
    assert report.ok, report.findings
    broken = {name for name, result in wanted.items() if result == BROKEN}
    notices = {notice.subject.split("/")[2] for notice in report.notices if notice.kind == "desktop_broken"}
    assert notices == broken
    assert not [notice for notice in report.notices if notice.kind == "further_attempt"]
    query = "SELECT tampered, evidence FROM examination WHERE rollout_key = 'hostile/os/program-removed/0'"
    (removed,) = await rows(system.ledger, query)
    assert (removed["tampered"], removed["evidence"]["system_files"]) == (False, ["/usr/bin/wc"])
    query = "SELECT score FROM evaluation WHERE rollout_key = 'hostile/os/server-patched/0'"
    assert await rows(system.ledger, query) == [{"score": 1.0}], "the evaluator was deceived; the score did not count"


def test_every_attack_of_the_page_is_tried() -> None:
    page = (PROJECT_ROOT / "docs" / "explanation" / "hostile-guest.md").read_text()
    assert {name for name in ROWS if f"`{name}`" not in page} == set()
