"""Settings: names, defaults, errors, secrets."""

import os
import re
from pathlib import Path

import pytest

from rollbook.config.osworld import evaluator_settings
from rollbook.config.settings import PROJECT_ROOT, Settings, default_state_dir, load_settings
from rollbook.config.unknown_names import INTERNAL, known_names, unknown_names
from rollbook.errors import ConfigError

SECRET = "postgresql://me:hunter2@db.example/ledger"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("ROLLBOOK_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_need_no_configuration() -> None:
    settings = load_settings()
    assert re.fullmatch(r"local-[0-9a-f]{6}", settings.deployment_id)
    assert load_settings(state_dir=Path("/var/other")).deployment_id != settings.deployment_id
    assert settings.shared == (PROJECT_ROOT.parent / "shared").resolve()
    assert settings.artifacts == f"file://{settings.state_dir}/artifacts"
    assert queues(settings) == [f"rollbook-{settings.deployment_id}"] * 3


def queues(settings: Settings) -> list[str]:
    return [settings.task_queue_orchestrate, settings.task_queue_desktop, settings.task_queue_osworld]


def test_queues_carry_the_deployment_unless_they_are_named() -> None:
    split = load_settings(deployment_id="prod-1", split_task_queues=True)
    assert queues(split) == ["rollbook-prod-1", "rollbook-prod-1/desktop", "rollbook-prod-1/osworld"]
    named = load_settings(deployment_id="prod-1", task_queue="q", split_task_queues=True)
    assert queues(named) == ["q", "q/desktop", "q/osworld"]


def test_the_exports_of_a_stack_are_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_settings(deployment_id="prod-1")
    monkeypatch.setenv("ROLLBOOK_TASK_QUEUE", before.task_queue_orchestrate)
    assert load_settings(deployment_id="prod-1").digest() == before.digest()


@pytest.mark.parametrize(("uid", "expected"), [(0, "/var/lib/rollbook"), (1234, "/var/tmp/rollbook-1234")])
def test_state_dir_lies_outside_homes(monkeypatch: pytest.MonkeyPatch, uid: int, expected: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert default_state_dir() == Path(expected)


def test_environment_beats_dotenv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ROLLBOOK_DEPLOYMENT_ID=from-file\nROLLBOOK_MAX_DESKTOPS=7\n")
    monkeypatch.setenv("ROLLBOOK_DEPLOYMENT_ID", "from-env")
    settings = load_settings()
    assert (settings.deployment_id, settings.max_desktops) == ("from-env", 7)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("DEPLOYMENT_ID", "a b", "letters"),
        ("TEMPORAL_PORT", "99999", "65535"),
        ("DATABASE_URL", "mysql://x", "postgresql://"),
        ("ARTIFACT_URL", "/tmp/x", "file:///"),
        ("MAX_DESKTOPS", "many", "integer"),
        ("DESKTOP_BASE", "magic", "debootstrap"),
    ],
)
def test_a_bad_value_names_the_setting_and_the_fix(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, hint: str
) -> None:
    monkeypatch.setenv(f"ROLLBOOK_{name}", value)
    with pytest.raises(ConfigError, match=rf"ROLLBOOK_{name}: .*{hint}"):
        load_settings()


def test_an_error_does_not_repeat_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_DATABASE_URL", "mysql://me:hunter2@db")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_database_url_gets_its_driver(scheme: str) -> None:
    settings = load_settings(database_url=f"{scheme}://me@db/ledger")
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == "postgresql+psycopg://me@db/ledger"


def test_secrets_stay_out_of_text_and_digest() -> None:
    settings = load_settings(database_url=SECRET)
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert settings.digest() == load_settings(database_url=SECRET.replace("hunter2", "other")).digest()


def test_a_child_process_gets_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(database_url=SECRET, max_desktops=3, install_docker=False, temporal_port=7300)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


def test_a_child_process_gets_the_evaluator_of_the_dotenv_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers run in another directory than the one in which `rollbook up` was typed."""
    lines = ("OSWORLD_VENV=venv", "EVALUATOR_ISOLATION=bwrap", f"EVALUATOR_MEMORY_BYTES={2**30}")
    (tmp_path / ".env").write_text("".join(f"ROLLBOOK_{line}\n" for line in lines))
    settings = load_settings()
    assert settings.digest() != load_settings(_env_file=None).digest(), "a running stack with others says so"
    monkeypatch.chdir("/")
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    found = evaluator_settings()
    assert (found.osworld_venv, found.evaluator_isolation, found.evaluator_memory_bytes) == (
        tmp_path / "venv",
        "bwrap",
        2**30,
    )


def test_a_bad_setting_of_the_evaluator_is_named_by_either_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_EVALUATOR_ISOLATION", "some")
    for read in (load_settings, evaluator_settings):
        with pytest.raises(ConfigError, match=r"ROLLBOOK_EVALUATOR_ISOLATION: .*bwrap"):
            read()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ROLLBOOK_MAX_DESKTOP", "did you mean ROLLBOOK_MAX_DESKTOPS?"),
        ("ROLLBOOK_STATEDIR", "did you mean ROLLBOOK_STATE_DIR?"),
        ("ROLLBOOK_EVALUATOR_MEMORY", "did you mean ROLLBOOK_EVALUATOR_MEMORY_BYTES?"),
        ("ROLLBOOK_QQQQ", "see docs/reference/settings.md"),
        ("rollbook_max_desktop", "did you mean ROLLBOOK_MAX_DESKTOPS?"),
    ],
)
def test_a_name_that_nothing_reads_is_pointed_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, meant: str
) -> None:
    (tmp_path / ".env").write_text(f"{name}=1\nOTHER=2\n")
    assert unknown_names(load_settings()) == [f"{name} (in .env) is not a setting: {meant}"]
    monkeypatch.setenv(name, "3")
    assert unknown_names(load_settings()) == [f"{name} is not a setting: {meant}"]


def test_names_that_something_reads_are_not_pointed_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in INTERNAL:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("rollbook_max_desktops", "3")
    profiles = tmp_path / "endpoints.toml"
    profiles.write_text('[endpoints.a]\napi_key_env = "ROLLBOOK_KEY_OF_A"\n')
    monkeypatch.setenv("ROLLBOOK_KEY_OF_A", "k")
    assert unknown_names(load_settings()), "no file mentions it"
    monkeypatch.setenv("ROLLBOOK_ENDPOINTS_FILE", str(profiles))
    settings = load_settings()
    assert (settings.max_desktops, unknown_names(settings)) == (3, [])


def test_every_name_in_the_code_is_known() -> None:
    """A variable that some part reads on its own would be called a typing error."""
    sources = [*(PROJECT_ROOT / "rollbook").rglob("*.py"), *(PROJECT_ROOT / "activities").rglob("*.py")]
    sources += [PROJECT_ROOT / "worker_main.py", *(PROJECT_ROOT / "scripts").rglob("*.sh")]
    found = {name for path in sources for name in re.findall(r"\bROLLBOOK_[A-Z_]*[A-Z]\b", path.read_text())}
    assert found <= known_names()


def test_every_setting_is_explained_and_in_the_reference() -> None:
    reference = (PROJECT_ROOT / "docs" / "reference" / "settings.md").read_text()
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"`ROLLBOOK_{name.upper()}`" in reference
