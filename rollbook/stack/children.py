"""One child process of the stack: start it, know when it is ready, stop it, kill it.

The supervisor and the fault tests use the same classes, so what the tests kill is what runs.
"""

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from rollbook.errors import RollbookError
from rollbook.stack.processes import ProcessRef, kill_group

LOG_ROTATE_BYTES = 20_000_000
TOKEN_VARIABLE = "ROLLBOOK_STACK_TOKEN"
"""Environment variable that marks every process of one stack, for `down` after the supervisor was killed."""
_PROBE_S = 0.05


class StackError(RollbookError):
    """A part of the local stack did not start or stop; the message says which, why and where its log is."""


@dataclass(frozen=True)
class Command:
    """What to execute: `user` is (uid, gid) to run as, None for ourselves."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    user: tuple[int, int] | None = None


class Child(ABC):
    """A server process with a log file. Subclasses say how to run it and how to see that it is ready."""

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
        """What has to be true before the process starts (directories, data files). May be repeated."""

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
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *command.argv,
                cwd=command.cwd,
                env={**self.env, **command.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **_as_user(command.user),
            )
        self.ref = ProcessRef.of(self._process.pid)
        if self.ref is None:
            raise StackError(f"{self.name} ended at once: {self.tail()}")
        return self.ref

    async def wait_ready(self) -> None:
        """Return when `probe` says yes. StackError if the process ends or `ready_timeout_s` passes first."""
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
        """What the process wrote since it was started last."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = 5) -> str:
        """The end of what the process wrote, and where to read on. For a Go panic: its reason, not its stack."""
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
    return {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}
