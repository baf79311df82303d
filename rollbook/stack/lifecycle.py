"""`rollbook up` and `rollbook down`."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from rollbook.config.settings import Settings
from rollbook.config.unknown_names import unknown_names
from rollbook.errors import ProviderUnavailable
from rollbook.stack.children import StackError
from rollbook.stack.containers import remove_desktops
from rollbook.stack.docker_engine import ensure_engine, stop_engine
from rollbook.stack.leftovers import stop_leftovers
from rollbook.stack.processes import stop_process, wait_gone
from rollbook.stack.state import StackState, StateDir

Log = Callable[[str], None]

UP_TIMEOUT_S = 240.0
SUPERVISOR_START_S = 30.0
STOP_TIMEOUT_S = 60.0


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
        # What it left running stays recorded for the next supervisor; its verdict does not.
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
        reason = log_file.read_text(errors="replace").strip().splitlines()[-1:]
        raise StackError(f"the supervisor does not start: {' '.join(reason)} (log: {log_file})")


async def _wait_ready(state_dir: StateDir, log: Log) -> StackState:
    started = time.monotonic()
    told: set[str] = set()
    while (waited := time.monotonic() - started) < UP_TIMEOUT_S:
        state = state_dir.read()
        if state is not None and state.running():
            for name, child in state.children.items():
                if child.phase == "ready" and name not in told:
                    told.add(name)
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
    """Stop every process and remove every desktop and network of this deployment; harmless when nothing runs.

    `engine=True` also stops a Docker engine that `up` started. Raises StackError when the Docker engine does not
    answer although the stack was started with one: its desktops may be left.
    """
    state_dir = StateDir.of(settings)
    state = state_dir.read()
    if state is not None:
        async with state_dir.lock("up"):
            state = state_dir.read() or state
            if state.supervisor is not None and state.supervisor.alive():
                grace = settings.worker_drain_s + 60.0
                await stop_process(state.supervisor, signal.SIGTERM, grace)
                state = state_dir.read() or state
            await stop_leftovers(state, log)
            _forget_processes(state)
            state_dir.write(state)
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
    words = [f"{number} {what} removed" for number, what in zip(removed, removed._fields, strict=True) if number]
    log("; ".join(["the stack is down", *words]))


def _forget_processes(state: StackState) -> None:
    state.phase, state.supervisor, state.token = "stopped", None, None
    state.temporal_address = state.temporal_ui_url = state.artifact_base_url = state.database_url = None
    for child in state.children.values():
        child.phase, child.ref = "stopped", None
