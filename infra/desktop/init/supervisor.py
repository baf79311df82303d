"""Starts services, starts them again when they end, collects every orphan of the container."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from init.services import Running, Service, spawn

SLOWEST_RESTART_S = 5.0
STEADY_AFTER_S = 30.0


class Fatal(Exception):
    """A service without which the desktop is no longer the same machine has ended."""


class Supervisor:
    """All services by process id, and those that wait for their next start."""

    def __init__(self) -> None:
        self._running: dict[int, Running] = {}
        self._waiting: list[tuple[float, Running]] = []
        self.on_session_lost: Callable[[], None] = lambda: None

    def start(self, *services: Service) -> None:
        """Start services that are not running yet."""
        for service in services:
            pid = spawn(service)
            self._running[pid] = Running(service, pid, time.monotonic())

    def run_forever(self) -> None:
        """Watch until a fatal service ends (raises Fatal) or the container must stop (returns)."""
        watched = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
        while True:
            self._collect()
            self._restart_due()
            received = signal.sigtimedwait(watched, self._pause_s())
            if received is not None and received.si_signo != signal.SIGCHLD:
                return

    def wait_for(self, condition: Callable[[], bool], limit_s: float, interval_s: float = 0.01) -> bool:
        """Poll until the condition holds or the limit is reached; dead processes are collected meanwhile."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._collect()
            time.sleep(interval_s)
        return True

    def stop_all(self, grace_s: float = 2.0) -> None:
        """Ask every process of the container to end, then kill what is left."""
        for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 1.0)):
            try:
                os.kill(-1, number)
            except ProcessLookupError:
                return
            deadline = time.monotonic() + limit_s
            while time.monotonic() < deadline and _children_exist():
                time.sleep(0.02)

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            running = self._running.pop(pid, None)
            if running is not None:
                self._ended(running, os.waitstatus_to_exitcode(status))

    def _ended(self, running: Running, exit_code: int) -> None:
        service = running.service
        print(f"init: {service.name} ended with {exit_code}", flush=True)
        if service.fatal:
            raise Fatal(f"{service.name} ended with {exit_code}")
        if time.monotonic() - running.started_at > STEADY_AFTER_S:
            running.starts = 1
        delay_s = min(0.1 * 2 ** (running.starts - 1), SLOWEST_RESTART_S)
        self._waiting.append((time.monotonic() + delay_s, running))

    def _restart_due(self) -> None:
        now = time.monotonic()
        due = [running for at, running in self._waiting if at <= now]
        self._waiting = [(at, running) for at, running in self._waiting if at > now]
        for running in due:
            pid = spawn(running.service)
            self._running[pid] = Running(running.service, pid, now, running.starts + 1)
            if running.service.session:
                self.on_session_lost()

    def restart(self, names: set[str]) -> None:
        """Kill the named services; they come back by the ordinary way."""
        for running in list(self._running.values()):
            if running.service.name in names:
                os.kill(running.pid, signal.SIGTERM)  # our child, not collected yet: the number is still its own

    def _pause_s(self) -> float:
        if not self._waiting:
            return 60.0
        return max(0.0, min(at for at, _ in self._waiting) - time.monotonic())


def accepts(path: str) -> bool:
    """Return whether a process listens on a unix socket."""
    if not Path(path).exists():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _children_exist() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
