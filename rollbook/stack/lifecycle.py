"""`rollbook up`, `down`, `ps` and `logs`: the processes of the stack, its desktops, and the local Docker engine."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from rollbook.config.child_environment import PACKAGES, child_environment
from rollbook.config.settings import Settings
from rollbook.config.unknown_names import unknown_names
from rollbook.errors import InvalidInput, ProviderUnavailable
from rollbook.redaction import redact_tail
from rollbook.sandboxes.docker.checks import SETUP_SCRIPT, engine_fix, engine_problem, may_set_up_engine
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, LABEL_STACK, Removed
from rollbook.sandboxes.registry import opened_providers
from rollbook.stack.children import StackError, stop_leftovers
from rollbook.stack.processes import ProcessRef, stop_process, wait_gone
from rollbook.stack.state import ChildState, StackState, StateDir

Log = Callable[[str], None]

UP_TIMEOUT_S = 240.0
SUPERVISOR_START_S = 30.0
STOP_TIMEOUT_S = 60.0
LOOK_S = 10.0


async def up(settings: Settings, log: Log = print, engine: bool = True) -> StackState:
    """Start what is not running and return when all of it is ready; does nothing to a healthy stack.

    `engine=False` leaves the Docker engine alone (desktops elsewhere). Raises StackError or ConfigError with the
    cause and the fix if a part does not start; then nothing stays running.
    """
    state_dir = StateDir.made(settings)
    for line in unknown_names(settings):
        log(f"warning: {line}")
    if engine:
        await ensure_engine(settings, log)
        # Before anything starts: desktops of a stack that dies right after are looked for all the same.
        state_dir.engine_used.touch()
    async with state_dir.lock("up"):
        state = state_dir.read()
        if state is None or not state.running():
            await _begin(state, state_dir, settings, log)
        elif state.settings_digest != settings.digest():
            log("the running stack has other settings: `rollbook down`, then `rollbook up`, applies yours")
        return await _wait_ready(state_dir, log)


async def _begin(state: StackState | None, state_dir: StateDir, settings: Settings, log: Log) -> None:
    if state is not None:
        if state.supervisor is not None and not await wait_gone(state.supervisor, STOP_TIMEOUT_S):
            raise StackError(f"the supervisor (pid {state.supervisor.pid}) does not end: run `rollbook down`")
        if state.phase in ("starting", "ready"):
            log("the supervisor is gone: starting the stack again")
        # The processes it left stay recorded for the next supervisor; its phase does not.
        state.phase, state.error, state.supervisor = "starting", None, None
        state_dir.write(state)
    await asyncio.to_thread(_spawn_supervisor, settings, state_dir)


def _spawn_supervisor(settings: Settings, state_dir: StateDir) -> None:
    log_file = state_dir.logs / "supervisor.log"
    with log_file.open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "rollbook.stack.supervisor"],
            cwd=state_dir.root,
            env={**os.environ, **settings.environment()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    if done.returncode != 0:
        # A slice, because the log may be empty.
        reason = log_file.read_text(errors="replace").strip().splitlines()[-1:]
        raise StackError(f"the supervisor does not start: {' '.join(reason)} (log: {log_file})")


async def _wait_ready(state_dir: StateDir, log: Log) -> StackState:
    started = time.monotonic()
    reported: set[str] = set()
    while (waited := time.monotonic() - started) < UP_TIMEOUT_S:
        state = state_dir.read()
        if state is not None and state.running():
            for name, child in state.children.items():
                if child.phase == "ready" and name not in reported:
                    reported.add(name)
                    log(f"{name}: {child.address}")
            if state.healthy():
                return state
        elif state is not None and state.phase == "failed":
            raise StackError(state.error or "the stack failed")
        elif waited > SUPERVISOR_START_S:
            raise StackError(f"the supervisor does not run: see {state_dir.logs / 'supervisor.log'}")
        await asyncio.sleep(0.05)
    raise StackError(f"the stack was not ready after {UP_TIMEOUT_S:.0f} s: see {state_dir.logs}")


async def down(settings: Settings, log: Log = print, engine: bool = False) -> None:
    """Stop every process and remove every desktop and network of this stack; harmless when nothing runs.

    `engine=True` also stops a Docker engine that `up` started. Raises StackError when the Docker engine does not
    answer although the stack was started with one: its desktops may be left.
    """
    state_dir = StateDir.of(settings)
    state = state_dir.read()
    if state is not None:
        async with state_dir.lock("up"):
            state = state_dir.read() or state
            if state.supervisor is not None and state.supervisor.alive():
                # The supervisor lets the workers drain, then stops the servers one after another.
                grace = settings.worker_drain_s + 60.0
                await stop_process(state.supervisor, signal.SIGTERM, grace)
                state = state_dir.read() or state
            await stop_leftovers(state, log)
            _forget_processes(state)
            state_dir.write(state)
    # The stack may have been started under another deployment id than this shell has now.
    own = settings if state is None else state.settings_of(settings)
    await _remove_desktops(own, state_dir, log)
    if engine:
        await stop_engine(settings, log)


async def _remove_desktops(settings: Settings, state_dir: StateDir, log: Log) -> None:
    try:
        removed = await remove_desktops(settings)
    except ProviderUnavailable as error:
        if not state_dir.engine_used.exists():  # a stack without an engine has no desktops here
            log("the stack is down")
            return
        raise StackError(
            f"every process is stopped, but {str(error).splitlines()[0]}; desktops of {settings.deployment_id} may be "
            "left: start the engine, or correct DOCKER_HOST, and run `rollbook down` again"
        ) from error
    state_dir.engine_used.unlink(missing_ok=True)
    words = [f"{number} {kind} removed" for number, kind in zip(removed, removed._fields, strict=True) if number]
    if left := await count_desktops(settings):
        words.append(
            f"{left} desktops of another stack with deployment id {settings.deployment_id} left alone "
            "(`rollbook sandboxes ls` lists them)"
        )
    log("; ".join(["the stack is down", *words]))


def _forget_processes(state: StackState) -> None:
    state.phase, state.supervisor, state.token = "stopped", None, None
    # The ports stay recorded: the next run prefers them.
    state.temporal_address = state.temporal_ui_url = state.artifact_base_url = state.database_url = None
    for child in state.children.values():
        child.phase, child.ref = "stopped", None


async def ensure_engine(settings: Settings, log: Log = print) -> None:
    """Return when a Docker engine answers. Raises StackError naming what is missing and the fix."""
    problem = await asyncio.to_thread(engine_problem)
    if problem is None:
        return
    if not may_set_up_engine():
        raise StackError(f"no Docker engine answers ({problem}): {engine_fix(problem)}")
    install = {
        "ROLLBOOK_INSTALL_DOCKER": "1" if settings.install_docker else "0",
        "ROLLBOOK_STATE_DIR": str(settings.state_dir),
    }
    process = await asyncio.create_subprocess_exec(
        str(SETUP_SCRIPT),
        "engine",
        env={**child_environment(*PACKAGES), **install},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode(errors="replace").strip()
    if process.returncode != 0:
        raise StackError(f"no Docker engine answers ({problem}) and it cannot be set up: {redact_tail(output, 400)}")
    log("the Docker engine runs")


async def stop_engine(settings: Settings, log: Log = print) -> None:
    """Stop the engine if it is the one that was started for this state directory."""
    record = StateDir.of(settings).engine
    try:
        ref = ProcessRef.model_validate_json(record.read_bytes())
    except (FileNotFoundError, ValidationError):
        log("the Docker engine was not started by this stack: left running")
        return
    if ref.alive():
        await stop_process(ref, grace_s=30.0)
        log("the Docker engine is stopped")
    record.unlink(missing_ok=True)


def record_engine(settings: Settings, pid: int) -> None:
    """Write down that the engine with this pid was started for this state directory, and may be stopped with it."""
    if (ref := ProcessRef.of(pid)) is not None:
        StateDir.made(settings).engine.write_text(ref.model_dump_json())


async def count_desktops(settings: Settings) -> int | None:
    """Count the deployment's desktops; None if a provider does not answer."""
    labels = {LABEL_DEPLOYMENT: settings.deployment_id}
    try:
        async with opened_providers(settings, LOOK_S) as providers, asyncio.timeout(LOOK_S):
            return sum([len(await provider.list(labels)) for provider in providers.values()])
    except (ProviderUnavailable, TimeoutError):
        return None


async def remove_desktops(settings: Settings) -> Removed:
    """Remove every desktop of this stack, and the deployment's networks that no desktop uses.

    Another stack may have been given the same deployment id: its desktops stay. Raises ProviderUnavailable when a
    provider does not answer: something may be left then.
    """
    labels = {LABEL_DEPLOYMENT: settings.deployment_id, LABEL_STACK: settings.stack_id}
    async with opened_providers(settings) as providers:
        removed = [await provider.remove_all(labels) for provider in providers.values()]
    return Removed(sum(each.desktops for each in removed), sum(each.networks for each in removed))


_FOLLOW_S = 0.3


class ProcessRow(BaseModel):
    """One line of `rollbook ps`."""

    name: str
    state: str
    """ready | starting | restarting | stopped | gone (recorded, but no longer there)."""
    pid: int | None
    for_s: int
    """Seconds in this state."""
    restarts: int
    last_exit: str | None
    address: str | None


class StackReport(BaseModel):
    """State of the processes as seen from outside the supervisor."""

    healthy: bool
    phase: str
    advice: str | None
    """Advice when it is not healthy."""
    deployment_id: str
    processes: list[ProcessRow]
    desktops: int | None
    """Desktops of this deployment; None if a sandbox provider does not answer."""


async def ps(settings: Settings) -> StackReport:
    """Look at every process of the stack. Never raises because something is down."""
    state = StateDir.of(settings).read()
    desktops = await count_desktops(settings if state is None else state.settings_of(settings))
    if state is None:
        return StackReport(
            healthy=False,
            phase="stopped",
            advice="the stack never ran here: `rollbook up` starts it",
            deployment_id=settings.deployment_id,
            processes=[],
            desktops=desktops,
        )
    rows = [_supervisor_row(state), *(_row(name, child) for name, child in state.children.items())]
    return StackReport(
        healthy=state.healthy(),
        phase=state.phase,
        advice=_advice(state),
        deployment_id=state.deployment_id,
        processes=rows,
        desktops=desktops,
    )


def _advice(state: StackState) -> str | None:
    if state.healthy():
        return None
    if state.phase == "failed":
        return f"it did not start: {state.error}"
    if state.phase == "stopped":
        return "`rollbook up` starts the stack"
    if not state.running() and state.phase != "stopping":
        return "the supervisor is gone: `rollbook up` repairs, `rollbook down` cleans up"
    troubled = [name for name, child in state.children.items() if child.phase != "ready"]
    return f"see `rollbook logs {troubled[0]}`" if troubled else None


def _supervisor_row(state: StackState) -> ProcessRow:
    alive = state.supervisor is not None and state.supervisor.alive()
    shown = state.phase if alive else ("stopped" if state.supervisor is None else "gone")
    return ProcessRow(
        name="supervisor",
        state=shown,
        pid=state.supervisor.pid if alive and state.supervisor else None,
        for_s=int(time.time() - state.started_at),
        restarts=0,
        last_exit=None,
        address=None,
    )


def _row(name: str, child: ChildState) -> ProcessRow:
    gone = child.ref is not None and not child.ref.alive()
    return ProcessRow(
        name=name,
        state="gone" if gone else child.phase,
        pid=None if gone or child.ref is None else child.ref.pid,
        for_s=int(time.time() - child.since),
        restarts=child.restarts,
        last_exit=child.last_exit,
        address=child.address,
    )


async def logs(
    settings: Settings, name: str | None = None, follow: bool = False, lines: int = 50, log: Log = print
) -> None:
    """Print the last `lines` lines of one log, or of all, each prefixed with its name; then go on if `follow`.

    Raises InvalidInput for a name without a log.
    """
    directory = StateDir.of(settings).logs
    paths = {path.stem: path for path in sorted(directory.glob("*.log"))} if directory.is_dir() else {}
    if name is not None and name not in paths:
        raise InvalidInput(f"no log named {name!r}: choose one of {', '.join(paths) or '(none yet)'}")
    chosen = paths if name is None else {name: paths[name]}
    offsets = {key: _print_tail(key, path, lines, log, prefix=name is None) for key, path in chosen.items()}
    while follow:
        await asyncio.sleep(_FOLLOW_S)
        for key, path in chosen.items():
            offsets[key] = _print_new(key, path, offsets[key], log, prefix=name is None)


def _print_tail(name: str, path: Path, lines: int, log: Log, prefix: bool) -> int:
    data = path.read_bytes()
    for line in data.decode(errors="replace").splitlines()[-lines:]:
        log(f"{name} | {line}" if prefix else line)
    return len(data)


def _print_new(name: str, path: Path, offset: int, log: Log, prefix: bool) -> int:
    size = path.stat().st_size if path.exists() else 0
    offset = 0 if size < offset else offset  # rotated
    if size == offset:
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]  # a line still being written waits for its end
    for line in whole.decode(errors="replace").splitlines():
        log(f"{name} | {line}" if prefix else line)
    return offset + len(whole)
