"""Keys of unusual shape are planted where they belong; then everything that we write is searched for them.

The model server throws them back in every usual spelling: in replies, in errors, encoded, within JSON in JSON.
"""

import asyncio
import base64
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.ledger import LedgerActivities
from models.batch import RegisterBatch
from models.spec import BatchSpec
from rollbook.config.settings import Settings
from rollbook.redaction import MARK, SECRETS
from tests.doubles.model_server import Call, ModelServer, Reply
from tests.support.model_server import DONE, model_spec
from tests.support.spellings import usual, usual_in_base64
from tests.support.system import System, WorkerProcess, running_system, small_tasks, system_settings

RIGHT_KEY = 'mk/"right\\key+=&%41 {}'
WRONG_KEY = "sk-wrong_key-$(id);--'x"
VNC_PASSWORD = "vN<c>1&7"
PROVIDER_KEY = "e2b_F00dcafe/tok:en=="
LEDGER_PASSWORD = "pg@pass/wörd#?1"
TENANT = "Basic dGVuYW50OmtleQ=="
SHORT = "pa$s9"
PLANTED = (RIGHT_KEY, WRONG_KEY, VNC_PASSWORD, PROVIDER_KEY, LEDGER_PASSWORD, TENANT.partition(" ")[2], SHORT)


def certain_in_base64(text: str) -> set[str]:
    """The characters of base64 that depend on the text alone, at each alignment and in both alphabets."""
    needles = set()
    for shift in range(3):
        plain = base64.b64encode(b"\0" * shift + text.encode()).decode()
        own = plain[(8 * shift + 5) // 6 : 8 * (shift + len(text.encode())) // 6]
        needles |= {own, own.replace("+", "-").replace("/", "_")}
    return needles


SPELLINGS = {spelling for secret in PLANTED for spelling in [*usual(secret).values(), *usual_in_base64(secret)]}
NEEDLES = {needle for secret in PLANTED for needle in [*usual(secret).values(), *certain_in_base64(secret)]}


LONG = {"max_output_tokens": 100_000}
"""So much is to be said."""


def hits(haystack: str) -> list[str]:
    """Which planted secrets a text holds."""
    return sorted(needle for needle in NEEDLES if needle in haystack)


def chatter(call: Call) -> Reply:
    """A model that says every secret in every form, thought, action and reasoning alike."""
    said = " ; ".join(sorted(SPELLINGS))
    reasoning = json.dumps({"header": f"Bearer {RIGHT_KEY}", "nested": json.dumps(PLANTED)})
    return Reply(DONE.replace("All is done.", said), reasoning=reasoning)


@dataclass
class Planted:
    """A system that has run with the secrets in it."""

    system: System
    server: ModelServer
    settings: Settings
    address: str
    worker_log: Path


@pytest.fixture(scope="module")
def planted_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("E2B_API_KEY", PROVIDER_KEY)
        patch.setenv("WRONG_MODEL_KEY", WRONG_KEY)
        yield


@pytest.fixture(scope="module")
async def planted(
    scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str, planted_environment: None
) -> AsyncIterator[Planted]:
    directory = scratch / "secrets"
    directory.mkdir()
    async with ModelServer(chatter, models_need_key=False, api_key=RIGHT_KEY) as server:
        settings = system_settings(
            directory,
            ledger_url.replace("://rollbook@", f"://rollbook:{quote(LEDGER_PASSWORD, safe='')}@"),
            deployment_id,
            endpoints_file=endpoints(directory, server),
            vnc_password=SecretStr(VNC_PASSWORD),
        )
        worker = WorkerProcess(settings, temporal_address, directory / "worker.log")
        async with running_system(settings, temporal_address, workers=False) as system:
            await system.register_tasks("two", small_tasks(2))
            await worker.start()
            try:
                await system.run_batch(model_spec("two", {"endpoint": "right", "sampling": LONG}), "secrets-right")
                await system.run_batch(model_spec("two", {"endpoint": "wrong"}, max_attempts=1), "secrets-wrong")
            finally:
                await worker.stop()
            yield Planted(system, server, settings, temporal_address, directory / "worker.log")
    SECRETS.clear()


def endpoints(directory: Path, server: ModelServer) -> Path:
    (directory / "key").write_text(RIGHT_KEY)
    (directory / "key").chmod(0o600)
    path = directory / "endpoints.toml"
    path.write_text(
        f'[endpoints.right]\nbase_url = "{server.url}"\napi_key_file = "key"\n'
        f'headers = {{ x-tenant-auth = "{TENANT}", x-pin-key = "{SHORT}" }}\n'
        f'[endpoints.wrong]\nbase_url = "{server.url}"\napi_key_env = "WRONG_MODEL_KEY"\n'
    )
    path.chmod(0o600)
    return path


async def ledger_dump(settings: Settings) -> dict[str, str]:
    """Every row of every table and view, as JSON."""
    assert settings.database_url is not None
    engine = create_async_engine(settings.database_url.get_secret_value())
    async with engine.connect() as conn:
        names = (
            await conn.execute(text("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"))
        ).scalars()
        found = {}
        for name in list(names):
            rows = await conn.execute(text(f'SELECT to_jsonb(t)::text FROM "{name}" t'))
            found[name] = "\n".join(rows.scalars())
    await engine.dispose()
    return found


def artifacts(settings: Settings) -> Iterable[tuple[str, bytes]]:
    for path in sorted((settings.state_dir / "artifacts").rglob("*")):
        if path.is_file():
            yield path.name, path.read_bytes()


def files_of(directory: Path) -> Iterator[tuple[str, str]]:
    for path in directory.rglob("*"):
        if path.is_file():
            yield path.name, path.read_text()


async def histories(planted: Planted) -> dict[str, str]:
    """Every history of both batches, payloads decoded."""
    found = {}
    for batch in ("secrets-right", "secrets-wrong"):
        keys = [str(row["rollout_key"]) for row in await planted.system.ledger.rollouts_of(batch)]
        for workflow in [batch, *keys]:
            history = (await planted.system.client.get_workflow_handle(workflow).fetch_history()).to_json()
            found[workflow] = history + "\n" + "\n".join(decoded(history))
    return found


def decoded(history: str) -> Iterator[str]:
    for one in re.findall(r'"data": ?"([A-Za-z0-9+/=]+)"', history):
        yield base64.b64decode(one).decode(errors="replace")


async def rollbook(planted: Planted, *arguments: str) -> tuple[int, str]:
    """The command line as a process of its own, with everything it says."""
    worker = WorkerProcess(planted.settings, planted.address, planted.worker_log)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rollbook.cli.main", *arguments),
        env=worker.environment() | {"PYTHONPATH": os.getcwd()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode(errors="replace")


# --- the bait was taken ------------------------------------------------------------------------------------


async def test_the_secrets_were_really_in_play(planted: Planted) -> None:
    assert len(planted.server.calls) >= 2
    for call in planted.server.calls:
        assert call.headers["authorization"] == f"Bearer {RIGHT_KEY}"
        assert call.headers["x-tenant-auth"] == TENANT
        assert call.headers["x-pin-key"] == SHORT
    assert planted.server.refused_keys >= 2, "the server has thrown the wrong key back"
    assert hits(DONE + json.dumps(PLANTED)), "the search finds what is there"
    ends = [json.loads(row) for row in (await ledger_dump(planted.settings))["outcome"].splitlines()]
    reasons = {(end["rollout_key"].partition("/")[0], end["termination_reason"]) for end in ends}
    assert reasons == {("secrets-right", "agent_done"), ("secrets-wrong", "model_call_failed")}


# --- and nothing of it was kept -----------------------------------------------------------------------------


async def test_the_ledger_holds_none(planted: Planted) -> None:
    dump = await ledger_dump(planted.settings)
    assert len(dump) > 20
    assert MARK in dump["model_call"], "the model's words are there, without the secrets"
    assert MARK in dump["outcome"], "so is the server's complaint about the key"
    assert {name: hits(rows) for name, rows in dump.items() if hits(rows)} == {}


async def test_a_spec_that_holds_one_is_refused(planted: Planted, tmp_path: Path) -> None:
    """By the command line, and by the worker where the plain `temporal` has sent it."""
    spec = model_spec("two", {"endpoint": "right"}, note=f"with the key {RIGHT_KEY}, not another one")
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    code, said = await rollbook(planted, "submit", str(tmp_path / "spec.json"), "--batch-id", "secrets-note")
    assert (code, hits(said)) == (2, [])
    assert "note: holds a password, token or key" in said
    request = RegisterBatch(
        batch_id="secrets-note", namespace="default", spec=BatchSpec.model_validate(spec), launch_id="1"
    )
    with pytest.raises(ApplicationError, match=r"note: holds a password") as refusal:
        await ActivityEnvironment().run(LedgerActivities(planted.system.services).register_batch, request)
    assert hits(str(refusal.value)) == []
    assert "secrets-note" not in (await ledger_dump(planted.settings))["batch"]


async def test_the_artifacts_hold_none(planted: Planted) -> None:
    kept = dict(artifacts(planted.settings))
    assert any(MARK.encode() in data for data in kept.values())
    found = {name: hits(data.decode(errors="replace")) for name, data in kept.items()}
    assert {name: found[name] for name in found if found[name]} == {}


async def test_no_array_of_tokens_spells_one(planted: Planted) -> None:
    rows = (await ledger_dump(planted.settings))["model_call"]
    assert '"tokens_sha256": "' not in rows
    for _, data in artifacts(planted.settings):
        assert b'"token_ids"' not in data


async def test_the_histories_hold_none(planted: Planted) -> None:
    found = await histories(planted)
    assert len(found) == 6
    assert all("EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED" in history for history in found.values())
    assert {name: hits(history) for name, history in found.items() if hits(history)} == {}


async def test_the_workers_log_holds_none(planted: Planted) -> None:
    log = planted.worker_log.read_text()
    assert "polling" in log
    assert hits(log) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "secrets-wrong", "--json"),
        ("audit", "secrets-right", "--json"),
        ("show", "secrets-right/os/t000/0", "--json"),
        ("show", "secrets-wrong/os/t000/0"),
        ("probe", "right", "--json"),
        ("probe", "wrong"),
    ],
)
async def test_the_command_line_says_none(planted: Planted, arguments: tuple[str, ...]) -> None:
    code, said = await rollbook(planted, *arguments)
    assert "Traceback" not in said
    assert code in (0, 1, 2)
    assert len(said) > 20
    assert hits(said) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("training", "secrets-right"),
        ("training", "secrets-wrong"),
        ("gym", "secrets-right"),
        ("gym", "secrets-wrong"),
    ],
)
async def test_the_exports_hold_none(planted: Planted, arguments: tuple[str, ...], tmp_path: Path) -> None:
    code, said = await rollbook(planted, "export", *arguments, "--out", str(tmp_path / "rows.jsonl"))
    assert code == 0, said
    written = dict(files_of(tmp_path))
    assert sum(map(len, written.values())) > 1000
    assert "secrets-right" not in arguments or MARK in "".join(written.values())
    assert {name: hits(content) for name, content in written.items() if hits(content)} == {}


async def test_the_evidence_holds_none_and_is_still_proven(planted: Planted) -> None:
    code, proof = await rollbook(planted, "evidence", "verify", "secrets-right/os/t000/0", "--json")
    assert code == 0, proof
    code, trace = await rollbook(planted, "evidence", "trace", "secrets-right/os/t000/0", "--full")
    assert code == 0, trace
    assert "trajectory_model_calls" in trace
    assert MARK in trace
    assert hits(proof + trace) == []


async def test_a_ledger_out_of_reach_is_no_reason_to_show_its_password(planted: Planted) -> None:
    url = f"postgresql://rollbook:{quote(LEDGER_PASSWORD, safe='')}@127.0.0.1:1/none"
    settings = planted.settings.model_copy(update={"database_url": SecretStr(url)})
    code, said = await rollbook(Planted(**{**vars(planted), "settings": settings}), "status", "secrets-right")
    assert code != 0
    assert hits(said) == []
