"""Doctor: findings, fixes and the exit code."""

import json

import pytest

from rollbook.settings import Settings, load_settings
from rollbook.stack import doctor as doctor_module
from rollbook.stack.artifact_server import media_type
from rollbook.stack.doctor import Check, check_python, check_tasks, print_checks


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_missing_requirement_fails(level: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    check = Check.model_validate({"name": "thing", "level": level, "found": "x", "fix": "mend it"})
    assert print_checks([check]) == code
    assert ("mend it" in capsys.readouterr().out) == (level != "ok")
    assert print_checks([check], as_json=True) == code
    assert json.loads(capsys.readouterr().out)["ok"] == (code == 0)


def test_an_unsupported_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module.sys, "version_info", (3, 10, 1))
    finding = check_python(load_settings())
    assert finding.level == "fail"
    assert finding.fix is not None


def test_missing_tasks_only_warn(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = load_settings(shared=tmp_path_factory.mktemp("empty"))
    assert check_tasks(settings).level == "warn"


async def test_a_check_that_breaks_is_a_finding() -> None:
    async def check_broken_thing(_: Settings) -> Check:
        raise OSError("boom")

    finding = await doctor_module._guarded(check_broken_thing, load_settings())
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
