"""Places of the checkout that revisions are found in."""

import shutil
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

import migrations
from rollbook.ledger import migrate


@pytest.mark.parametrize("name", ["100%", "50%(here)s", "a%%b", "with a space"])
def test_revisions_are_found_wherever_the_checkout_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    heads = ScriptDirectory.from_config(migrate._config(None)).get_heads()
    copy = tmp_path / name / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, copy)
    monkeypatch.setattr(migrations, "__file__", str(copy / "__init__.py"))
    monkeypatch.setattr(migrate, "VERSIONS", [copy / "versions"])
    scripts = ScriptDirectory.from_config(migrate._config(None))
    assert scripts.get_heads() == heads
    assert Path(scripts.dir) == copy
