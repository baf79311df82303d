"""Boot: `python3 -m init` as root, as process 1 or below Docker's own init (`--init`).

Order: nonce and cookie; display, bus and guest server side by side; then the session; then `ready`, from when on
/screenshot answers; last the live view, which nothing waits for.
"""

import os
import signal
import subprocess
import sys
import time

from init import desktop, elevation, records, vnc
from init.accounts import ROOT_ENVIRONMENT, RUN_DIR, USER, account
from init.preparation import prepare
from init.supervisor import Fatal, Supervisor, accepts

DRAWN_WITHIN_S = 40.0
"""On an idle machine a second is enough; many desktops that start at once on a busy one take half a minute."""


def main() -> int:
    """Boot and supervise; the exit code is 0 after SIGTERM, 1 when the display was lost."""
    started = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})
    user = account(USER)
    prepare(user)
    supervisor = Supervisor()
    try:
        bus = f"/run/user/{user.uid}/bus"
        supervisor.start(
            desktop.display_server(), desktop.message_bus(user), desktop.guest_server(user), records.service()
        )
        needed = ("/tmp/.X11-unix/X0", bus, str(records.SOCKET))
        if not supervisor.wait_for(lambda: all(accepts(path) for path in needed), DRAWN_WITHIN_S):
            raise Fatal("display, session bus or records did not come up")
        connected_s = time.monotonic() - started
        session = desktop.session(user)
        supervisor.on_session_lost = lambda: supervisor.restart({service.name for service in session})
        *managed, panel = session
        supervisor.start(*managed)
        supervisor.wait_for(_window_manager_runs, DRAWN_WITHIN_S)
        supervisor.start(panel, elevation.service())
        drawn = supervisor.wait_for(_desktop_is_drawn, DRAWN_WITHIN_S, interval_s=0.03)
        (RUN_DIR / "ready").touch()
        drawn_s = time.monotonic() - started
        print(
            f"init: display and bus after {connected_s:.2f} s, "
            f"{'drawn' if drawn else 'NOT fully drawn'} after {drawn_s:.2f} s",
            flush=True,
        )
        supervisor.start(*vnc.services())
        supervisor.run_forever()
    except Fatal as reason:
        print(f"init: {reason}; stopping", file=sys.stderr, flush=True)
        supervisor.stop_all(grace_s=0.5)
        return 1
    supervisor.stop_all()
    return 0


def _window_manager_runs() -> bool:
    """A panel that starts earlier sleeps a whole second before it looks again."""
    return "window id" in _output("xprop", "-root", "_NET_SUPPORTING_WM_CHECK")


def _desktop_is_drawn() -> bool:
    """The background is painted (its root pixmap is announced), panel and desktop window are mapped."""
    background = _output("xprop", "-root", "_XROOTPMAP_ID")
    if "PIXMAP" not in background:
        return False
    windows = _output("xdotool", "search", "--onlyvisible", "--class", "^(tint2|pcmanfm)$")
    return len(windows.split()) >= 2


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, env=ROOT_ENVIRONMENT, timeout=10).stdout
    except subprocess.TimeoutExpired:
        return ""  # not yet


if __name__ == "__main__":
    if 1 not in (os.getpid(), os.getppid()) or os.geteuid() != 0:
        sys.exit("init: must be root and the first process of a container, or started by Docker's own init")
    sys.exit(main())
