"""Running commands for the agent and for task setup.

Output goes to unlinked files instead of pipes: a program that a command leaves running in the background keeps
its output open, and reading a pipe to its end would then last as long as that program.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from typing import IO

from guest.errors import CommandTimeout, GuestError

Command = str | list[str]


@dataclass(frozen=True)
class Completed:
    """A command that ended by itself: its two outputs as text and its return code."""

    output: str
    error: str
    returncode: int


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
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        process = _start(command, shell=shell, cwd=cwd, stdout=output, stderr=output if merge else error)
        try:
            returncode = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise CommandTimeout(timeout_s) from None
        return Completed(_text(output, max_output_bytes), _text(error, max_output_bytes), returncode)


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


def _text(stream: IO[bytes], limit: int) -> str:
    stream.seek(0)
    return stream.read(limit).decode("utf-8", errors="replace")
