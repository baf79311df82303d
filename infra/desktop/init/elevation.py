"""Root's side of `sudo` in a container without set-user-ID ("no new privileges").

OSWorld's tasks and agents use sudo with a known password. Under no-new-privileges the kernel ignores the
set-user-ID bit, so /usr/bin/sudo asks this service instead: it checks the user's password against the
shadow file and runs the command as root on the caller's own standard streams.

One connection per sudo call. The client sends lines of JSON: `authenticate` until one succeeds, then `run` with
its three standard streams attached (SCM_RIGHTS), then any number of `signal`. A `run` is answered with its exit
code.
"""

import array
import contextlib
import crypt
import grp
import hmac
import json
import os
import pwd
import signal
import socket
import spwd
import struct
import subprocess
import threading
import time
from dataclasses import dataclass, field

from init.accounts import ROOT_ENVIRONMENT, RUN_DIR
from init.services import OWN_DIRECTORY, Service, module

SOCKET = RUN_DIR / "elevation"
REMEMBERED_S = 15 * 60.0


def service() -> Service:
    """The service that init starts."""
    return Service("elevation", module("init.elevation"), ROOT_ENVIRONMENT, directory=OWN_DIRECTORY)


@dataclass
class Grants:
    """Which sessions gave the password lately, as sudo remembers it per terminal."""

    until: dict[tuple[int, int], float] = field(default_factory=dict)

    def holds(self, key: tuple[int, int]) -> bool:
        return self.until.get(key, 0.0) > time.monotonic()

    def give(self, key: tuple[int, int]) -> None:
        self.until[key] = time.monotonic() + REMEMBERED_S


class Caller:
    """One connection of the sudo command."""

    def __init__(self, connection: socket.socket, grants: Grants) -> None:
        self._connection = connection
        self._grants = grants
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self._pid, self._uid, _ = struct.unpack("3i", raw)
        self._key = (self._uid, os.getsid(self._pid))
        self._allowed = self._uid == 0

    def serve(self) -> None:
        """Answer requests until the client hangs up."""
        with self._connection:
            while True:
                request, streams = self._receive()
                if request is None:
                    return
                kind = request.get("kind")
                if kind == "authenticate":
                    self._send(granted=self._authenticate(request))
                elif kind == "forget":
                    self._grants.until.pop(self._key, None)
                    self._send(granted=False)
                elif kind == "run" and self._allowed:
                    self._run(request, streams)
                    return
                else:
                    return

    def _authenticate(self, request: dict) -> bool:
        password = request.get("password")
        if password is None:
            self._allowed = self._allowed or self._grants.holds(self._key)
        elif _password_is_right(self._uid, password):
            self._grants.give(self._key)
            self._allowed = True
        return self._allowed

    def _run(self, request: dict, streams: list[int]) -> None:
        target = pwd.getpwnam(request["user"])
        try:
            process = subprocess.Popen(
                request["command"],
                cwd=request["directory"],
                env=request["environment"],
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                user=target.pw_uid,
                group=target.pw_gid,
                extra_groups=os.getgrouplist(target.pw_name, target.pw_gid),
                start_new_session=True,
            )
        except OSError as error:
            self._send(exit_code=1, message=f"{request['command'][0]}: {error.strerror or error}")
            return
        finally:
            for stream in streams:
                os.close(stream)
        threading.Thread(target=self._pass_signals, args=(process,), daemon=True).start()
        exit_code = process.wait()
        with contextlib.suppress(OSError):
            self._send(exit_code=exit_code if exit_code >= 0 else 128 - exit_code)

    def _pass_signals(self, process: subprocess.Popen[bytes]) -> None:
        while True:
            request, _ = self._receive()
            number = signal.SIGHUP if request is None else int(request.get("number", signal.SIGTERM))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            if request is None:
                return

    def _receive(self) -> tuple[dict | None, list[int]]:
        """The next line, with the descriptors that came along; None when the client has gone."""
        line, descriptors = b"", array.array("i")
        while not line.endswith(b"\n"):
            try:
                data, extra, _, _ = self._connection.recvmsg(65536, socket.CMSG_SPACE(3 * descriptors.itemsize))
            except OSError:
                return None, []
            if not data:
                return None, []
            line += data
            for level, kind, payload in extra:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
        return json.loads(line), list(descriptors)

    def _send(self, **answer: object) -> None:
        self._connection.sendall(json.dumps(answer).encode() + b"\n")


def _password_is_right(uid: int, password: str) -> bool:
    """Against the shadow file. Only members of group sudo may become root at all."""
    name = pwd.getpwuid(uid).pw_name
    sudo_gid = _group_id("sudo")
    if sudo_gid not in os.getgrouplist(name, pwd.getpwuid(uid).pw_gid):
        return False
    stored = spwd.getspnam(name).sp_pwdp
    return hmac.compare_digest(crypt.crypt(password, stored) or "", stored)


def _group_id(name: str) -> int:
    return grp.getgrnam(name).gr_gid


def main() -> None:
    """Accept callers for ever."""
    SOCKET.unlink(missing_ok=True)
    grants = Grants()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(SOCKET))
        SOCKET.chmod(0o666)
        listener.listen(16)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=Caller(connection, grants).serve, daemon=True).start()


if __name__ == "__main__":
    main()
