"""The wheel holds everything that a worker needs; no checkout is needed beside it."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rollbook.config.settings import PROJECT_ROOT
from rollbook.sandboxes.docker.image import inputs_digest

SHIPPED = ("rollbook", "models", "workflows", "activities", "migrations", "worker_main.py", "infra/desktop")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the unpacked wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=PROJECT_ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    # pip and not zipfile: it keeps the execute bits, which are a part of the image.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--target", str(directory / "site"), str(wheel)], check=True, capture_output=True)
    return directory / "site"


def run(installed: Path, *arguments: str) -> str:
    """Output of Python with the wheel and its dependencies, without this checkout."""
    # -S: no site, so that the checkout's own .pth file is not read.
    ran = subprocess.run(
        [sys.executable, "-S", "-P", *arguments],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{sysconfig.get_path('purelib')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_it_holds_every_file_of_the_packages(installed: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *SHIPPED], cwd=PROJECT_ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    assert len(tracked) > 200
    assert not [name for name in tracked if not (installed / name).is_file()]


def test_a_worker_and_the_command_line_run_from_it(installed: Path) -> None:
    assert "orchestrate" in run(installed, "-m", "worker_main", "--help")
    assert run(installed, "-c", "import worker_main; print(worker_main.__file__)").startswith(str(installed))
    version = run(installed, "-c", "from rollbook.cli.main import entrypoint; entrypoint()", "--version")
    assert version.startswith("rollbook ")


def test_image_evaluator_and_ledger_are_made_from_it(installed: Path) -> None:
    """The same desktop image as a checkout's; the evaluator's lock; the schema's revisions."""
    program = """
from rollbook.config.osworld import default_osworld_venv
from rollbook.ledger.migrate import VERSIONS
from rollbook.osworld.environment import LOCKED, LOCKED_NO_DEPS
from rollbook.sandboxes.docker.image import inputs_digest

assert LOCKED.is_file() and LOCKED_NO_DEPS.is_file()
print(inputs_digest(), VERSIONS[0], default_osworld_venv())
"""
    digest, revisions, venv = run(installed, "-c", program).split()
    assert digest == inputs_digest()
    assert Path(revisions).is_relative_to(installed)
    assert not Path(venv).is_relative_to(installed)
