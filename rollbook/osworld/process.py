"""A process of its own session that can be killed with everything it started."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self
from uuid import uuid4

MARKER = "ROLLBOOK_EVALUATOR_RUN"
"""Environment variable by which a stray descendant is found again, whatever session it made for itself."""

TERM_GRACE_S = 2.0


class KillableProcess:
    """Runs while entered; leaving kills what is left, also on cancellation."""

    def __init__(
        self, command: Sequence[str], *, stdin: bytes, log: BinaryIO, cwd: Path, env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._command = list(command)
        self._stdin = stdin
        self._log = log
        self._cwd = cwd
        self._marker = uuid4().hex
        self._env = {**env, MARKER: self._marker}
        self._pass_fds = pass_fds

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=self._log, stderr=self._log, cwd=self._cwd,
            env=self._env, start_new_session=True, pass_fds=self._pass_fds,
        )  # fmt: skip
        self._feeding = asyncio.create_task(self._feed())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = asyncio.create_task(self.kill())
        await asyncio.shield(self._ending)  # a second cancellation does not leave it half killed

    async def wait(self) -> int:
        """The exit code, once the process has ended. Negative: the signal that ended it."""
        return await self._process.wait()

    async def kill(self) -> None:
        """End the process group, politely for two seconds, then what else carries our marker."""
        self._feeding.cancel()
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), TERM_GRACE_S)
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await self._process.wait()
        await asyncio.to_thread(_kill_marked, self._marker)

    def resident_bytes(self) -> int:
        """Memory that the process and its descendants hold now."""
        pages, waiting = 0, [self._process.pid]
        while waiting:
            pid = waiting.pop()
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                for thread in os.listdir(f"/proc/{pid}/task"):
                    waiting += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
            except (OSError, ValueError, IndexError):
                continue  # gone meanwhile
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:  # not reaped yet: the group is still ours
            os.killpg(self._process.pid, number)

    async def _feed(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(self._stdin)
            await pipe.drain()
            pipe.close()
        except ConnectionError:
            pass  # it ended before it read its request: its exit code says so


def _kill_marked(marker: str) -> None:
    """Kill what still carries the marker; twice over, since a fork may run ahead of the first look."""
    needle = f"{MARKER}={marker}".encode()
    for _ in range(20):
        found = [pid for pid in _pids() if needle in _environment(pid)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
