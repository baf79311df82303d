"""The caller's side of `sudo` under no-new-privileges; where set-user-ID works, the real sudo is executed.

Understands what tasks and agents use: -S -n -k -K -v -E -H -i -s -b -u USER -p PROMPT, VAR=value, `--`.
"""

import argparse
import array
import getpass
import json
import os
import pwd
import re
import shutil
import signal
import socket
import sys
from pathlib import Path

REAL_SUDO = "/usr/bin/sudo.setuid"
SOCKET = "/run/rollbook/elevation"
KEPT = ("TERM", "LANG", "LANGUAGE", "LC_ALL", "DISPLAY", "XAUTHORITY", "COLORTERM")
SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ATTEMPTS = 3


class Service:
    """The connection to root's side."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(SOCKET)
        self._lines = self._socket.makefile("rb")

    def ask(self, streams: tuple[int, ...] = (), **request: object) -> dict:
        self.tell(streams, **request)
        return json.loads(self._lines.readline() or b"{}")

    def tell(self, streams: tuple[int, ...] = (), **request: object) -> None:
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))] if streams else []
        self._socket.sendmsg([json.dumps(request).encode() + b"\n"], attached)


def main() -> int:
    """Exit code of the command, or 1 with a message as sudo would put it."""
    if os.geteuid() == 0 or not _privileges_are_frozen():
        os.execv(REAL_SUDO, ["sudo", *sys.argv[1:]])
    options = _parse(sys.argv[1:])
    try:
        service = Service()
    except OSError as error:
        return _fail(f"the elevation service does not answer: {error}")
    if options.forget or options.forget_all:
        service.ask(kind="forget")
        if not options.command:
            return 0
    if not _authenticate(service, options):
        return 1
    if options.validate:
        return 0
    return _run(service, options)


def _privileges_are_frozen() -> bool:
    status = Path("/proc/self/status").read_text()
    return "NoNewPrivs:\t1" in status


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sudo", allow_abbrev=False)
    parser.add_argument("-S", "--stdin", action="store_true")
    parser.add_argument("-n", "--non-interactive", action="store_true")
    parser.add_argument("-k", "--reset-timestamp", dest="forget", action="store_true")
    parser.add_argument("-K", "--remove-timestamp", dest="forget_all", action="store_true")
    parser.add_argument("-v", "--validate", action="store_true")
    parser.add_argument("-E", "--preserve-env", action="store_true")
    parser.add_argument("-H", "--set-home", action="store_true")
    parser.add_argument("-i", "--login", action="store_true")
    parser.add_argument("-s", "--shell", action="store_true")
    parser.add_argument("-b", "--background", action="store_true")
    parser.add_argument("-u", "--user", default="root")
    parser.add_argument("-p", "--prompt")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    if not (
        options.command or options.login or options.shell or options.validate or options.forget or options.forget_all
    ):
        parser.error("a command is missing")
    return options


def _authenticate(service: Service, options: argparse.Namespace) -> bool:
    if service.ask(kind="authenticate").get("granted"):
        return True
    if options.non_interactive:
        _fail("a password is required")
        return False
    for attempt in range(ATTEMPTS):
        password = _password(options)
        if password is None:
            _fail("no password was provided")
            return False
        if service.ask(kind="authenticate", password=password).get("granted"):
            return True
        if attempt < ATTEMPTS - 1:
            print("Sorry, try again.", file=sys.stderr)
    _fail(f"{ATTEMPTS} incorrect password attempts")
    return False


def _password(options: argparse.Namespace) -> str | None:
    name = pwd.getpwuid(os.getuid()).pw_name
    prompt = options.prompt if options.prompt is not None else f"[sudo] password for {name}: "
    if not options.stdin:
        try:
            return getpass.getpass(prompt)
        except EOFError:
            return None
    print(prompt, end="", file=sys.stderr, flush=True)
    line = b""
    while not line.endswith(b"\n"):  # one byte at a time: what follows belongs to the command
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line.rstrip(b"\n").decode("utf-8", errors="replace") if line else None


def _run(service: Service, options: argparse.Namespace) -> int:
    try:
        target = pwd.getpwnam(options.user)
    except KeyError:
        return _fail(f"unknown user {options.user}")
    environment = _environment(target, options)
    words = list(options.command)
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    command = _command(words, target, options)
    if command is None:
        return _fail(f"{words[0]}: command not found")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda received, _frame: service.tell(kind="signal", number=received))
    answer = service.ask(
        (0, 1, 2),
        kind="run",
        user=target.pw_name,
        command=command,
        directory=target.pw_dir if options.login else os.getcwd(),
        environment=environment,
    )
    if message := answer.get("message"):
        _fail(message)
    return int(answer.get("exit_code", 1))


def _environment(target: pwd.struct_passwd, options: argparse.Namespace) -> dict[str, str]:
    kept = dict(os.environ) if options.preserve_env else {k: os.environ[k] for k in KEPT if k in os.environ}
    me = pwd.getpwuid(os.getuid())
    return kept | {
        "PATH": SAFE_PATH,
        "HOME": target.pw_dir,
        "USER": target.pw_name,
        "LOGNAME": target.pw_name,
        "SHELL": target.pw_shell,
        "SUDO_USER": me.pw_name,
        "SUDO_UID": str(me.pw_uid),
        "SUDO_GID": str(me.pw_gid),
        "SUDO_COMMAND": " ".join(options.command),
    }


def _command(words: list[str], target: pwd.struct_passwd, options: argparse.Namespace) -> list[str] | None:
    if options.login or options.shell:
        shell = target.pw_shell if options.login else os.environ.get("SHELL", "/bin/bash")
        login = ["-l"] if options.login else []
        return [shell, *login, *(["-c", " ".join(words)] if words else [])]
    found = shutil.which(words[0], path=SAFE_PATH) if words else None
    command = [found, *words[1:]] if found else None
    return ["/bin/sh", "-c", '"$@" &', "sh", *command] if command and options.background else command


def _fail(message: str) -> int:
    print(f"sudo: {message}", file=sys.stderr)
    return 1
