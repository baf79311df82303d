"""Running commands for the agent and for task setup.

Output goes through pipes and never to a file: on a full disk a file would hold nothing, and no output is an answer
that an evaluator scores. A program that a command leaves running in the background keeps its pipes open, so a command's
answer does not wait for their end; a thread reads on, and drops what comes, lest that program stops.
"""

import contextlib
import fcntl
import os
import select
import shlex
import signal
import struct
import subprocess
import termios
import threading
from dataclasses import dataclass
from typing import IO

from guest.errors import CommandTimeout, GuestError
from guest.memory import oom_kills

Command = str | list[str]

_CHUNK_BYTES = 65536
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Return codes of a killed command, and of a shell whose last command was killed."""


@dataclass(frozen=True)
class Completed:
    """A command that ended by itself: its two outputs as text and its return code."""

    output: str
    error: str
    returncode: int
    out_of_memory: bool
    """The kernel killed it, or what its shell waited for, because the desktop's memory was exhausted. A command that
    kills itself has the same return code, but that is its own doing."""


def parse(command: object, shell: bool) -> Command:
    """The command as it will be executed: without a shell a string is split, and a leading `~/` is the home.

    Raises GuestError when it is neither a string nor a list of strings, or is empty.
    """
    if isinstance(command, str):
        if not command.strip():
            raise GuestError("field 'command' is empty")
        if shell:
            return command
        try:
            command = shlex.split(command)
        except ValueError as error:
            raise GuestError(f"field 'command' cannot be split into words: {error}") from error
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise GuestError("field 'command' must be a string or a list of strings, and not empty")
    return [os.path.expanduser(word) if word.startswith("~/") else word for word in command]


def run(
    command: Command,
    *,
    shell: bool,
    timeout_s: float,
    max_output_bytes: int,
    cwd: str | None = None,
    merge: bool = False,
) -> Completed:
    """Run to the end of the command itself (not of what it leaves in the background).

    `merge` sends standard error into the output. Raises CommandTimeout at the limit, GuestError (500, as the
    protocol has it) when the command cannot be started.
    """
    stderr = subprocess.STDOUT if merge else subprocess.PIPE
    kills = oom_kills()
    process = _start(command, shell=shell, cwd=cwd, stdout=subprocess.PIPE, stderr=stderr)
    try:
        output = _Output(process.stdout, max_output_bytes)
        error = None if merge else _Output(process.stderr, max_output_bytes)
        returncode = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        kill_group(process)
        raise CommandTimeout(timeout_s) from None
    except RuntimeError as trouble:  # no thread: an output that is not read must not pass for an empty one
        kill_group(process)
        raise GuestError(f"the command's output cannot be read: {trouble}", 500) from trouble
    starved = returncode in _KILLED and oom_kills() > kills
    return Completed(output.so_far(), error.so_far() if error else "", returncode, starved)


def launch(command: Command, *, shell: bool) -> None:
    """Start a program and leave it running; a thread waits for it so that it never stays a zombie."""
    process = _start(command, shell=shell, cwd=None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    threading.Thread(target=process.wait, name=f"wait-{process.pid}", daemon=True).start()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and everything that is still in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _start(
    command: Command, *, shell: bool, cwd: str | None, stdout: int | IO[bytes], stderr: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            shell=shell,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise GuestError(str(error), 500) from error


class _Output:
    """One output of a command. A thread reads it to its end, whenever that is, and keeps the first `limit` bytes."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        self._pipe = pipe
        self._room = limit
        self._kept = bytearray()
        self._lock = threading.Lock()
        os.set_blocking(pipe.fileno(), False)
        threading.Thread(target=self._read, name=f"read-{pipe.fileno()}", daemon=True).start()

    def so_far(self) -> str:
        """Everything written before this call; what is written later is dropped."""
        with self._lock:
            if not self._pipe.closed:
                self._take(self._waiting())
            text = self._kept.decode("utf-8", errors="replace")
            self._kept, self._room = bytearray(), 0
        return text

    def _read(self) -> None:
        readable = select.poll()
        readable.register(self._pipe, select.POLLIN)
        while not self._pipe.closed:
            readable.poll()
            with self._lock, contextlib.suppress(BlockingIOError):  # `so_far` may have been quicker
                if not self._take(_CHUNK_BYTES):
                    self._pipe.close()

    def _take(self, size: int) -> int:
        """Read at most `size` bytes of what waits in the pipe; 0 at its end."""
        chunk = os.read(self._pipe.fileno(), size) if size else b""
        kept = chunk[: self._room]
        self._kept += kept
        self._room -= len(kept)
        return len(chunk)

    def _waiting(self) -> int:
        answer = fcntl.ioctl(self._pipe.fileno(), termios.FIONREAD, bytes(4))
        return int(struct.unpack("i", answer)[0])
