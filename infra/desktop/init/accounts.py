"""The desktop's user, and the environment of the user's session."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

USER = "user"
DISPLAY = ":0"
RUN_DIR = Path("/run/rollbook")
PACKAGE_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Account:
    """A user id with its groups' owner and home."""

    name: str
    uid: int
    gid: int
    home: Path


def account(name: str) -> Account:
    """The account of the password database."""
    entry = pwd.getpwnam(name)
    return Account(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


ROOT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "en_US.UTF-8",
    "DISPLAY": DISPLAY,
    "XAUTHORITY": str(RUN_DIR / "xauthority"),
}


def session_environment(user: Account) -> dict[str, str]:
    """Return the environment of every program of the desktop session; nothing of the container's own variables but the
    `ROLLBOOK_GUEST_*` settings, so that no password handed to the container reaches the agent."""
    runtime = f"/run/user/{user.uid}"
    settings = {name: value for name, value in os.environ.items() if name.startswith("ROLLBOOK_GUEST_")}
    return settings | {
        "PATH": f"{user.home}/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(user.home),
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": "/bin/bash",
        "LANG": "en_US.UTF-8",
        "DISPLAY": DISPLAY,
        "XAUTHORITY": str(user.home / ".Xauthority"),
        "XDG_RUNTIME_DIR": runtime,
        "XDG_SESSION_TYPE": "x11",
        "XDG_CURRENT_DESKTOP": "GNOME",
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus",
        "GTK_MODULES": "gail:atk-bridge",
        "GTK_A11Y": "atspi",
        "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
        "ACCESSIBILITY_ENABLED": "1",
        "GSK_RENDERER": "cairo",
        "LIBGL_ALWAYS_SOFTWARE": "1",
    }
