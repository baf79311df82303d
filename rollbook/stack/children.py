"""One child process of the stack: start it, know when it is ready, stop it, kill it.

The supervisor and the fault tests use the same classes, so the tests kill what runs in production.
"""

import asyncio
import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from rollbook.config.child_environment import child_environment
from rollbook.errors import RollbookError
from rollbook.stack.processes import ProcessRef, kill_group, marked_processes, stop_process, wait_gone
from rollbook.stack.state import ChildPhase, ChildState, StackState

LOG_ROTATE_BYTES = 20_000_000
TOKEN_VARIABLE = "ROLLBOOK_STACK_TOKEN"
"""Environment variable that marks every process of one stack, for `down` after the supervisor was killed."""
_PROBE_S = 0.05


class StackError(RollbookError):
    """A part of the local stack did not start or stop; the message names it, the reason and its log."""


@dataclass(frozen=True)
class Command:
    """A command line; `user` is (uid, gid) to run as, None for the present user."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    user: tuple[int, int] | None = None


class Child(ABC):
    """A server process with a log file. Subclasses say how to run it and how to see that it is ready."""

    variables: tuple[str, ...] = ()
    """Variables that it inherits besides the common ones, as patterns (`rollbook.config.child_environment`)."""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    stop_grace_s: float = 10.0
    ready_timeout_s: float = 60.0

    def __init__(self, name: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self.env = dict(os.environ if env is None else env)
        self.ref: ProcessRef | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    async def prepare(self) -> None:  # noqa: B027 - most children need nothing
        """Make directories and data files that the process needs. May be repeated."""

    @abstractmethod
    def command(self) -> Command:
        """The process to run."""

    @abstractmethod
    async def probe(self) -> bool:
        """True once the process does its work. Exceptions OSError and TimeoutError count as not yet."""

    async def spawn(self) -> ProcessRef:
        """Start the process; returns at once."""
        await self.prepare()
        command = self.command()
        with _open_log(self.log) as log:
            # Error messages show the output of this start, not of the ones before.
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *command.argv,
                cwd=command.cwd,
                env={**child_environment(TOKEN_VARIABLE, *self.variables, source=self.env), **command.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A group of its own: what a server starts is killed with it, and Ctrl-C does not reach it.
                start_new_session=True,
                **_as_user(command.user),
            )
        self.ref = ProcessRef.of(self._process.pid)
        if self.ref is None:
            raise StackError(f"{self.name} ended at once: {self.tail()}")
        return self.ref

    async def wait_ready(self) -> None:
        """Return when `probe` is true. StackError if the process ends or `ready_timeout_s` passes first."""
        assert self._process is not None, "spawn first"
        try:
            async with asyncio.timeout(self.ready_timeout_s):
                while not await self._probe_once():
                    if self._process.returncode is not None:
                        raise StackError(
                            f"{self.name} ended with {describe_exit(self._process.returncode)} "
                            f"before it was ready: {self.tail()}"
                        )
                    await asyncio.sleep(_PROBE_S)
        except TimeoutError:
            raise StackError(f"{self.name} was not ready after {self.ready_timeout_s:.0f} s: {self.tail()}") from None

    async def _probe_once(self) -> bool:
        try:
            async with asyncio.timeout(5.0):
                return await self.probe()
        except (OSError, TimeoutError):
            return False

    async def start(self) -> None:
        """Start the process and wait until it is ready; nothing is left running if it is not."""
        await self.spawn()
        try:
            await self.wait_ready()
        except BaseException:
            await self.kill9()
            raise

    async def wait(self) -> int:
        """Wait for the process to end; its exit code, negative for a signal."""
        assert self._process is not None, "spawn first"
        return await self._process.wait()

    async def stop(self) -> None:
        """End the process: `stop_signal`, then SIGKILL to its group after `stop_grace_s` seconds."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(self.stop_signal)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), self.stop_grace_s)
        await self.kill9()

    async def kill9(self) -> None:
        """SIGKILL the process and its group, and reap it."""
        if self._process is None or self.ref is None:
            return
        kill_group(self.ref)
        await self._process.wait()

    def output(self) -> str:
        """Output of the process since its last start."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = 5) -> str:
        """The end of the output, and the path of the log. For a Go panic: its reason, not its stack."""
        text = self.output().strip().splitlines()
        reasons = [line for line in text if line.startswith(("panic:", "fatal error:"))]
        return "\n  ".join([*(reasons or text[-lines:]), f"(log: {self.log})"])


def describe_exit(code: int) -> str:
    """`exit code 1` or `signal SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _open_log(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_ROTATE_BYTES:
        path.replace(path.with_suffix(path.suffix + ".1"))
    return path.open("ab")


def _as_user(user: tuple[int, int] | None) -> dict[str, Any]:
    # Without the last, the groups of root would stay.
    return {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}


FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A child that ran this long after it was ready starts over with the shortest pause."""

logger = logging.getLogger(__name__)


class Restarter:
    """One child and its line in the state file; `changed` is called after every change of that line."""

    def __init__(self, child: Child, state: ChildState, changed: Callable[[], None]) -> None:
        self.child = child
        self.state = state
        self._changed = changed
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """First start: an error is raised to the caller, there is no second try."""
        await self._launch()
        self._watch = asyncio.create_task(self._keep(), name=f"keep-{self.child.name}")

    async def stop(self) -> None:
        """End the child; it is not started again."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        await self.child.stop()
        self.state.ref = None
        self._set("stopped")
        logger.info("%s stopped", self.child.name)

    async def _launch(self) -> None:
        self._set("starting")
        self.state.ref = await self.child.spawn()
        self._changed()
        try:
            await self.child.wait_ready()
        except BaseException:
            await self.child.kill9()
            self.state.ref = None
            raise
        self._set("ready")
        logger.info("%s ready (pid %d)", self.child.name, self.state.ref.pid)

    async def _keep(self) -> None:
        failures = 0
        while True:
            code = await self.child.wait()
            await self.child.kill9()  # its process group may have outlived it
            failures = 0 if time.time() - self.state.since > STEADY_S else failures
            self._died(describe_exit(code))
            while not await self._try_again(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10))):
                failures += 1
            failures += 1

    async def _try_again(self, pause_s: float) -> bool:
        logger.warning("%s starts again in %.1f s", self.child.name, pause_s)
        await asyncio.sleep(pause_s)
        self.state.restarts += 1
        try:
            await self._launch()
        except Exception as error:  # any at all: without another try the child would stay away
            self._died(str(error))
            return False
        return True

    def _died(self, why: str) -> None:
        logger.error("%s died: %s", self.child.name, why)
        self.state.ref = None
        self.state.last_exit = why
        self._set("restarting")

    def _set(self, phase: ChildPhase) -> None:
        self.state.phase = phase
        self.state.since = time.time()
        self._changed()


Log = Callable[[str], None]

# SIGTERM would make Postgres wait until every client has left.
_STOP_SIGNALS = {"postgres": signal.SIGINT}


async def stop_leftovers(state: StackState, log: Log) -> int:
    """Stop every process of the run that `state` describes; their number.

    First the recorded children, workers before the servers they talk to, then whatever carries the run's mark:
    a child started just before the supervisor died is in no file.
    """
    stopped = 0
    for name, child in sorted(state.children.items(), key=lambda item: _order(item[0])):
        if child.ref is None:
            continue
        if child.ref.alive():
            log(f"stopping {name} (pid {child.ref.pid}), left by an earlier supervisor")
            await stop_process(child.ref, _STOP_SIGNALS.get(name, signal.SIGTERM))
            stopped += 1
        kill_group(child.ref)
    if state.token:
        for ref in marked_processes(TOKEN_VARIABLE, state.token):
            log(f"killing pid {ref.pid}, left by an earlier supervisor")
            ref.signal(signal.SIGKILL)
            await wait_gone(ref, 5.0)
            stopped += 1
    return stopped


def _order(name: str) -> int:
    if name.startswith("worker"):
        return 0
    return {"artifacts": 1, "temporal": 2}.get(name, 3)
