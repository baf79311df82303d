"""`rollbook ps` and `rollbook logs`."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from rollbook.config.settings import Settings
from rollbook.errors import InvalidInput
from rollbook.stack.lifecycle import count_desktops
from rollbook.stack.state import ChildState, StackState, StateDir

Log = Callable[[str], None]
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
    """What runs, as far as can be seen from outside the supervisor."""

    healthy: bool
    phase: str
    advice: str | None
    """What to do when it is not healthy."""
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
