"""The evaluator's own Python environment: OSWorld's `desktop_env` 1.0.2, unmodified, without its optional giants.

`python -m rollbook.osworld.environment` builds it; building again takes milliseconds while nothing changed.
Its content is locked by hash in `rollbook/osworld/requirements`. Bytecode is compiled at once: without it every
evaluation would spend three more seconds on imports.
"""

import asyncio
import base64
import csv
import fcntl
import hashlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollbook.config.child_environment import PACKAGES, child_environment
from rollbook.config.osworld import evaluator_settings
from rollbook.errors import ConfigError
from rollbook.redaction import redact_tail

RUNNER_VERSION = "1"
"""Raise it when a change of `rollbook/osworld/inside` may change a score."""

_REQUIREMENTS = Path(__file__).parent / "requirements"
LOCKED = _REQUIREMENTS / "osworld.txt"
LOCKED_NO_DEPS = _REQUIREMENTS / "osworld-nodeps.txt"
_STAMP = "rollbook-evaluator.json"
_RECIPE = "1"

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EvaluatorEnv:
    """The environment and what identifies it; both versions are recorded with every score."""

    python: Path
    revision: str
    """Names everything that may change a score: package and file digests, locked dependencies, our runner."""
    numpy: str
    desktop_env: str


async def ensure_environment(log: Log = print) -> EvaluatorEnv:
    """The evaluator's environment, built if it is missing or out of date. Safe to call from several processes at once.

    Raises ConfigError when it cannot be built, or when the installed `desktop_env` is not the published one.
    """
    venv = evaluator_settings().osworld_venv
    wanted = _recipe_digest()
    async with _only_one():
        stamp = _read_stamp(venv)
        if stamp.get("recipe") != wanted:
            stamp = await _build(venv, wanted, log)
        env = EvaluatorEnv(
            venv / "bin" / "python", stamp["environment"]["revision"], stamp["environment"]["numpy"],
            stamp["environment"]["desktop_env"],
        )  # fmt: skip
        await asyncio.to_thread(verify_unmodified, venv, stamp["record_digest"])
    return env


def verify_unmodified(venv: Path, record_digest: str | None = None) -> str:
    """Check every file of `desktop_env` against the hashes of its wheel; returns the digest of those hashes.

    Raises ConfigError that names the first file that differs: a score of changed code is not OSWorld's score.
    """
    site, hashes = _published_hashes(venv)
    for name, wanted in hashes.items():
        digest = hashlib.sha256((site / name).read_bytes()).digest() if (site / name).is_file() else b""
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != wanted:
            raise ConfigError(f"{site / name} is not the published file: remove {venv} and build it again")
    digest_now = hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()
    if record_digest is not None and digest_now != record_digest:
        raise ConfigError(f"desktop_env's list of files in {venv} changed: remove {venv} and build it again")
    return digest_now


async def _build(venv: Path, wanted: str, log: Log) -> dict[str, Any]:
    log(f"building the evaluator's environment in {venv} (about a minute)")
    await asyncio.to_thread(_clear, venv)
    uv = _uv()
    python = venv / "bin" / "python"
    install = [uv, "pip", "install", "--python", str(python), "--require-hashes", "--compile-bytecode"]
    await _run([uv, "venv", "--python", sys.executable, str(venv)], log=None)
    await _run([*install, "--requirement", str(LOCKED)], log)
    await _run([*install, "--no-deps", "--requirement", str(LOCKED_NO_DEPS)], log)
    record_digest = await asyncio.to_thread(verify_unmodified, venv)
    versions = json.loads(await _run([str(python), "-I", "-c", _VERSIONS], log=None))
    environment = EvaluatorEnv(python, _revision(versions["desktop_env"], record_digest), **versions)
    stamp = {"recipe": wanted, "record_digest": record_digest, "environment": asdict(environment)}
    (venv / _STAMP).write_text(json.dumps(stamp, default=str, indent=2) + "\n")
    log(f"evaluator {environment.revision}, numpy {environment.numpy}")
    return stamp


def _clear(venv: Path) -> None:
    if not venv.exists():
        return
    if not (venv / "pyvenv.cfg").exists():
        raise ConfigError(f"ROLLBOOK_OSWORLD_VENV: {venv} exists but is not a virtual environment; choose another path")
    shutil.rmtree(venv)


_VERSIONS = (
    "import json; from importlib.metadata import version; "
    "print(json.dumps({'numpy': version('numpy'), 'desktop_env': version('desktop_env')}))"
)


def _revision(version: str, record_digest: str) -> str:
    parts = json.dumps([record_digest, _digest(LOCKED), RUNNER_VERSION])
    return f"desktop_env-{version}-r{RUNNER_VERSION}-{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


def _recipe_digest() -> str:
    # Not the virtual environment that asks: two checkouts that share one evaluator would rebuild it in turns.
    python = str(Path(sys.executable).resolve())
    parts = [_RECIPE, RUNNER_VERSION, sys.version, python, _digest(LOCKED), _digest(LOCKED_NO_DEPS)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: install rollbook again") from None


def _read_stamp(venv: Path) -> dict[str, Any]:
    try:
        stamp = json.loads((venv / _STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _published_hashes(venv: Path) -> tuple[Path, dict[str, str]]:
    records = list(venv.glob("lib/python3.*/site-packages/desktop_env-*.dist-info/RECORD"))
    if len(records) != 1:
        raise ConfigError(f"{venv} holds {len(records)} versions of desktop_env, not one: remove it and build again")
    with records[0].open(newline="") as file:
        rows = [row for row in csv.reader(file) if row and row[0].startswith("desktop_env/")]
    return records[0].parent.parent, {row[0]: row[1].removeprefix("sha256=") for row in rows if row[1]}


def _uv() -> str:
    try:
        from uv import find_uv_bin
    except ImportError:
        found = shutil.which("uv")
        if found is None:
            raise ConfigError("uv is not installed: pip install uv") from None
        return found
    return str(find_uv_bin())


async def _run(command: list[str], log: Log | None) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=child_environment(*PACKAGES),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        raw, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    output = raw.decode("utf-8", "replace")
    if process.returncode != 0:
        raise ConfigError(
            f"the evaluator's environment could not be built: {' '.join(command)}\n{redact_tail(output, 3000)}"
        )
    if log is not None and output.strip():
        log(output.strip().splitlines()[-1])
    return output


@asynccontextmanager
async def _only_one() -> AsyncIterator[None]:
    with LOCKED.open() as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.2)
        yield


def main() -> None:
    """Build the environment and print what it is."""
    env = asyncio.run(ensure_environment())
    print(f"{env.revision} (numpy {env.numpy}) in {env.python.parent.parent}")


if __name__ == "__main__":
    main()
