"""Doctor: findings, fixes and the exit code."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.config.findings import Check
from rollbook.config.settings import Settings, load_settings
from rollbook.sandboxes.docker import checks as checks_docker
from rollbook.stack import doctor as checks
from rollbook.stack.artifact_server import media_type
from rollbook.stack.doctor import examinations, print_checks


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("ROLLBOOK_", "DOCKER_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_missing_requirement_fails(level: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    check = Check.model_validate({"name": "thing", "level": level, "found": "x", "fix": "repair it"})
    assert print_checks([check]) == code
    assert ("repair it" in capsys.readouterr().out) == (level != "ok")
    assert print_checks([check], as_json=True) == code
    assert json.loads(capsys.readouterr().out)["ok"] == (code == 0)


ENGINE = {"ServerVersion": "20.10", "Driver": "overlay2", "DockerRootDir": "/engine"}
IMAGE = "rollbook/desktop:mine"


def _disks(**free_gb: float) -> Callable[[Path], float]:
    """Free space by the first part of a path; a look at another place is an error."""
    return lambda place: free_gb[place.parts[1]]


CASES: list[tuple[Callable[[Settings], Check], dict[str, Any], dict[str, Any], str, str, str]] = [
    # check, facts, settings, level, a part of what is found, a part of the fix
    (checks.check_python, {"python_version": (3, 11, 0)}, {}, "ok", "3.11.0", ""),
    (checks.check_python, {"python_version": (3, 13, 9)}, {}, "ok", "3.13.9", ""),
    (checks.check_python, {"python_version": (3, 10, 1)}, {}, "fail", "3.10.1", "Python 3.11"),
    (checks.check_python, {"python_version": (3, 14, 0)}, {}, "fail", "3.14.0", "3.13"),
    (checks.check_uv, {"uv_path": "/bin/uv"}, {}, "ok", "/bin/uv", ""),
    (checks.check_uv, {"uv_path": None}, {}, "warn", "cannot be built", "make setup"),
    (checks.check_sandbox, {"bubblewrap_problem": None}, {}, "ok", "works", ""),
    (checks.check_sandbox, {"bubblewrap_problem": "missing"}, {}, "fail", "missing", "apt-get install bubblewrap"),
    (checks.check_sandbox, {"bubblewrap_problem": "no", "kernel_switch": "0"}, {}, "fail", "no", "userns_clone=1"),
    (checks.check_sandbox, {"bubblewrap_problem": "no", "kernel_switch": None}, {}, "fail", "no", "seccomp"),
    (
        checks.check_sandbox,
        {"bubblewrap_problem": "missing"},
        {"evaluator_isolation": "none"},
        "warn",
        "unconfined (ROLLBOOK_EVALUATOR_ISOLATION=none)",
        "confine",
    ),
    (checks.check_memory, {"available_memory_gb": 6.1}, {"max_desktops": 3}, "ok", "up to 3 desktops", ""),
    (checks.check_memory, {"available_memory_gb": 5.9}, {}, "warn", "5.9 GB", "ROLLBOOK_MAX_DESKTOPS"),
    (checks.check_memory, {"available_memory_gb": 2.9}, {}, "fail", "2.9 GB", "ROLLBOOK_MAX_DESKTOPS"),
    (checks.check_disk, {"free_gb": _disks(state=15.1)}, {}, "ok", "15.1 GB free at /state", ""),
    (checks.check_disk, {"free_gb": _disks(state=14.9)}, {}, "warn", "14.9 GB free at /state", "ROLLBOOK_STATE_DIR"),
    (checks.check_disk, {"free_gb": _disks(state=4.9)}, {}, "fail", "4.9 GB free at /state", "ROLLBOOK_STATE_DIR"),
    (checks_docker.check_docker_disk, {"free_gb": _disks(engine=15.1)}, {}, "ok", "15.1 GB free at /engine", ""),
    (checks_docker.check_docker_disk, {"free_gb": _disks(engine=14.9)}, {}, "warn", "at /engine", "data-root"),
    (checks_docker.check_docker_disk, {"free_gb": _disks(engine=4.9)}, {}, "fail", "at /engine", "docker system df"),
    (checks_docker.check_docker_disk, {"engine_problem": "refused"}, {}, "warn", "unknown without an engine", ""),
    (checks_docker.check_engine, {}, {}, "ok", "20.10, storage overlay2", ""),
    (checks_docker.check_engine, {"engine_problem": "refused"}, {}, "fail", "refused", ""),
    (checks_docker.check_engine, {"engine_info": ENGINE | {"Driver": "vfs"}}, {}, "warn", "copies", "/engine"),
    (checks_docker.check_image, {"image_mb": 700.0}, {}, "ok", "(700 MB)", ""),
    (checks_docker.check_image, {"image_mb": None}, {}, "warn", "is not built yet", "make setup"),
    (checks_docker.check_image, {"image_mb": 9.0}, {"desktop_image": IMAGE}, "ok", f"{IMAGE} (9 MB)", ""),
    (
        checks_docker.check_image,
        {"image_mb": None},
        {"desktop_image": IMAGE},
        "fail",
        f"{IMAGE} (ROLLBOOK_DESKTOP_IMAGE)",
        "unset ROLLBOOK_DESKTOP_IMAGE",
    ),
    (checks_docker.check_image, {"engine_problem": "refused"}, {}, "warn", "unknown without an engine", ""),
    (checks.check_evaluator, {}, {"osworld_venv": "/nowhere"}, "warn", "/nowhere is not built", "make setup"),
    (checks.check_tasks, {}, {"shared": "/nowhere"}, "warn", "/nowhere/osworld does not exist", "ROLLBOOK_SHARED"),
    (checks.check_settings, {}, {}, "ok", "known", ""),
]


@pytest.mark.parametrize(("check", "found_facts", "changes", "level", "found", "fix"), CASES)
def test_what_is_found_is_judged(
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[Settings], Check],
    found_facts: dict[str, Any],
    changes: dict[str, Any],
    level: str,
    found: str,
    fix: str,
) -> None:
    for name, value in {"engine_problem": None, "engine_info": ENGINE, **found_facts}.items():
        for module in (checks, checks_docker):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value if callable(value) else lambda *_, value=value: value)
    finding = check(load_settings(_env_file=None, **{"state_dir": "/state", **changes}))
    assert (finding.level, found in finding.found, fix in (finding.fix or "")) == (level, True, True), finding
    assert finding.level == "ok" or finding.fix or "without an engine" in finding.found, "every problem has its fix"


def test_the_disk_of_an_engine_elsewhere_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://desktops.example:2376")
    monkeypatch.setattr(checks_docker, "engine_problem", lambda: None)
    monkeypatch.setattr(checks_docker, "engine_info", lambda: ENGINE)
    finding = checks_docker.check_docker_disk(load_settings())
    assert (finding.level, "DOCKER_HOST" in finding.found) == ("ok", True)


def test_a_misspelt_setting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_MAX_DESKTOP", "3")
    finding = checks.check_settings(load_settings())
    assert (finding.level, "did you mean ROLLBOOK_MAX_DESKTOPS?" in finding.found) == ("warn", True)


def test_an_evaluator_named_in_a_dotenv_file_is_looked_for_there(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / ".env").write_text("ROLLBOOK_OSWORLD_VENV=venv\n")
    assert checks.check_evaluator(load_settings()) == Check(name="evaluator", level="ok", found=str(tmp_path / "venv"))


def test_every_check_is_run() -> None:
    written = {
        value for module in (checks, checks_docker) for name, value in vars(module).items() if name.startswith("check_")
    }
    assert written == set(examinations(load_settings()))


async def test_a_check_that_breaks_is_a_finding() -> None:
    def check_broken_thing(_: Settings) -> Check:
        raise OSError("boom")

    finding = await checks._guarded(check_broken_thing, load_settings())
    assert (finding.name, finding.level, finding.found) == ("broken thing", "fail", "boom")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b'{"a": 1}', "application/json; charset=utf-8"),
        (b"<script>alert(1)</script>", "text/plain; charset=utf-8"),
        ("é".encode()[:1], "text/plain; charset=utf-8"),
        (b"ab\0cd", "application/octet-stream"),
        (b"ab\xffcdefgh", "application/octet-stream"),
        (b"", "text/plain; charset=utf-8"),
    ],
)
def test_media_type_never_makes_a_page(head: bytes, kind: str) -> None:
    assert media_type(head) == kind
