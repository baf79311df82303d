"""The state directory and file, and what is found through it."""

import os
import stat
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from rollbook.config.connections import LedgerRole, ledger_url, temporal_connect_config
from rollbook.config.settings import Settings, load_settings
from rollbook.errors import ConfigError
from rollbook.stack.lifecycle import ps
from rollbook.stack.processes import ProcessRef
from rollbook.stack.state import ChildState, StackState, StateDir

ROLES: tuple[LedgerRole, ...] = get_args(LedgerRole)


def _state(running: bool = True) -> StackState:
    me = ProcessRef.of(os.getpid())
    assert me is not None
    gone = me.model_copy(update={"start_s": me.start_s - 1})
    return StackState(
        phase="ready",
        deployment_id="t",
        supervisor=me if running else gone,
        temporal_address="127.0.0.1:7299",
        database_url="postgresql+psycopg://rollbook@/rollbook?host=/x",
        children={"temporal": ChildState(phase="ready", ref=me, log=Path("/x.log"))},
    )


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in list(os.environ):
        if name.startswith(("ROLLBOOK_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    return load_settings(state_dir=tmp_path / "state", deployment_id="state-test")


def test_state_survives_writing_and_is_private(settings: Settings) -> None:
    directory = StateDir.of(settings)
    directory.create()
    directory.write(_state())
    assert directory.read() == _state()
    assert stat.S_IMODE(directory.state_file.stat().st_mode) == 0o600


def test_create_refuses_a_symlink(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    settings.state_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="ROLLBOOK_STATE_DIR"):
        StateDir.of(settings).create()


def test_create_refuses_what_others_may_write(settings: Settings) -> None:
    settings.state_dir.mkdir()
    settings.state_dir.chmod(0o777)
    with pytest.raises(ConfigError, match="no other user may write"):
        StateDir.of(settings).create()


def test_a_damaged_file_is_named(settings: Settings) -> None:
    directory = StateDir.of(settings)
    directory.create()
    directory.state_file.write_text('{"phase": 3')
    with pytest.raises(ConfigError, match=r"stack\.json is damaged"):
        directory.read()


def test_locks_exclude(settings: Settings) -> None:
    directory = StateDir.of(settings)
    directory.create()
    first = directory.try_lock("up")
    assert first is not None
    assert directory.try_lock("up") is None
    first.release()
    again = directory.try_lock("up")
    assert again is not None
    again.release()


def test_a_stack_without_its_supervisor_is_not_running(settings: Settings) -> None:
    assert _state().healthy()
    assert not _state(running=False).running()
    assert not _state(running=False).healthy()


def test_connections_come_from_the_running_stack(settings: Settings) -> None:
    directory = StateDir.of(settings)
    directory.create()
    directory.write(_state())
    assert temporal_connect_config(settings)["target_host"] == "127.0.0.1:7299"
    urls = {role: ledger_url(settings, role) for role in ROLES}
    assert urls["owner"] == "postgresql+psycopg://rollbook@/rollbook?host=/x"
    for role in ROLES[1:]:
        assert urls[role] == f"postgresql+psycopg://rollbook_{role}@/rollbook?host=/x"


def test_explicit_connections_win(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = StateDir.of(settings)
    directory.create()
    directory.write(_state())
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "osworld")
    config = temporal_connect_config(settings)
    assert (config["target_host"], config["namespace"]) == ("temporal.example:7233", "osworld")
    own = settings.model_copy(update={"database_url": load_settings(database_url="postgres://h/l").database_url})
    assert {ledger_url(own, role) for role in ROLES} == {"postgresql+psycopg://h/l"}
    migrated = load_settings(database_url="postgres://app@h/l", owner_database_url="postgres://boss@h/l")
    assert ledger_url(migrated, "owner") == "postgresql+psycopg://boss@h/l"
    assert {ledger_url(migrated, role) for role in ROLES[1:]} == {"postgresql+psycopg://app@h/l"}


@pytest.mark.parametrize("find", [temporal_connect_config, partial(ledger_url, role="worker")])
def test_nothing_configured_and_nothing_running_says_what_to_do(settings: Settings, find: object) -> None:
    directory = StateDir.of(settings)
    directory.create()
    directory.write(_state(running=False))
    with pytest.raises(ConfigError, match="rollbook up"):
        find(settings)  # type: ignore[operator]


async def test_ps_tells_a_lost_supervisor(settings: Settings) -> None:
    directory = StateDir.of(settings)
    directory.create()
    directory.write(_state(running=False))
    report = await ps(settings)
    assert not report.healthy
    assert report.processes[0].state == "gone"
    assert report.advice is not None
    assert "rollbook up" in report.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres runs as another user")
def test_a_directory_below_a_private_home_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    chosen = load_settings(state_dir=home / "deep" / "state", deployment_id="state-test")
    with pytest.raises(ConfigError, match="choose a directory outside private homes"):
        StateDir.made(chosen)
    assert list(home.iterdir()) == []
    elsewhere = chosen.model_copy(update={"database_url": "postgresql+psycopg://me@db/rollbook"})
    assert StateDir.made(elsewhere).root.is_dir()
