"""The live view: x11vnc on loopback, noVNC over WebSocket on port 8006. View only.

Settings of the container, each as a variable or, with `_FILE` appended, as a file that holds the value:
`VNC_PASSWORD` is asked for before anything is shown (without it the view is open to everyone who reaches the port);
`VNC_CONTROL_PASSWORD` gives mouse and keyboard as well. `VNC=off` starts no view. VNC itself looks at the first
8 characters of a password only.
"""

import os
import secrets
from pathlib import Path

from init.accounts import DISPLAY, ROOT_ENVIRONMENT, RUN_DIR, account
from init.services import Service

PORT = 8006
WEB_ROOT = "/usr/share/novnc"


def services() -> list[Service]:
    """Both servers of the live view, or none when it is switched off."""
    if os.environ.get("VNC", "").lower() in ("off", "0", "no"):
        return []
    x11vnc = ("x11vnc", "-display", DISPLAY, "-auth", str(RUN_DIR / "xauthority"), "-localhost", "-rfbport", "5900")
    options = ("-forever", "-shared", "-nobell", "-noxrecord", "-quiet", *_access())
    bridge = ("python3", "-m", "websockify", "--web", WEB_ROOT, str(PORT), "127.0.0.1:5900")
    return [
        Service("x11vnc", x11vnc + options, ROOT_ENVIRONMENT),
        Service("novnc", bridge, ROOT_ENVIRONMENT, account("nobody")),
    ]


def _access() -> tuple[str, ...]:
    """Return the options for passwords. A random password replaces an absent one: it locks that kind of access."""
    view, control = _secret("VNC_PASSWORD"), _secret("VNC_CONTROL_PASSWORD")
    if not view and not control:
        return ("-viewonly", "-nopw")
    passwords = RUN_DIR / "vnc-passwords"
    passwords.touch(mode=0o600)
    passwords.write_text(
        f"{(control or secrets.token_hex(4))[:8]}\n__BEGIN_VIEWONLY__\n{(view or secrets.token_hex(4))[:8]}\n"
    )
    return ("-passwdfile", str(passwords))


def _secret(name: str) -> str:
    path = os.environ.get(f"{name}_FILE")
    return Path(path).read_text().strip() if path else os.environ.get(name, "").strip()
