"""Files that must be in place before the first process of the session starts."""

import os
import secrets
import shutil
import subprocess
from pathlib import Path

from init.accounts import DISPLAY, RUN_DIR, Account


def prepare(user: Account) -> None:
    """Fresh runtime directories, boot nonce and X cookie. What an earlier boot of the container left is removed."""
    _mint_nonce()
    _runtime_directories(user)
    _x_cookie(user)


def _mint_nonce() -> None:
    """A new random name for this boot; world-readable, writable by root only."""
    RUN_DIR.mkdir(mode=0o755, exist_ok=True)
    (RUN_DIR / "ready").unlink(missing_ok=True)
    nonce = RUN_DIR / "nonce"
    nonce.unlink(missing_ok=True)
    nonce.write_text(secrets.token_hex(16) + "\n")
    nonce.chmod(0o444)
    (RUN_DIR / "records.socket").unlink(missing_ok=True)
    shutil.rmtree(RUN_DIR / "records", ignore_errors=True)  # they describe the boot that ended


def _runtime_directories(user: Account) -> None:
    runtime = Path(f"/run/user/{user.uid}")
    shutil.rmtree(runtime, ignore_errors=True)
    runtime.mkdir(parents=True)
    runtime.chmod(0o700)
    os.chown(runtime, user.uid, user.gid)
    for leftover in (Path("/tmp/.X0-lock"), Path("/tmp/.X11-unix/X0")):
        leftover.unlink(missing_ok=True)
    for shared in (Path("/tmp/.X11-unix"), Path("/tmp/.ICE-unix")):
        shared.mkdir(exist_ok=True)
        shared.chmod(0o1777)
    Path("/var/log/rollbook").mkdir(parents=True, exist_ok=True)


def _x_cookie(user: Account) -> None:
    """One cookie in two files: the server's, and the user's ~/.Xauthority.

    A real entry matters beyond access control: with an empty file python-xlib prints a warning on standard
    *output* of every program that imports pyautogui, which spoils what evaluators read.
    """
    cookie = secrets.token_hex(16)
    for path, owner in ((RUN_DIR / "xauthority", None), (user.home / ".Xauthority", user)):
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        subprocess.run(
            ["xauth", "-q", "-f", str(path), "add", DISPLAY, "MIT-MAGIC-COOKIE-1", cookie], check=True, timeout=10
        )
        if owner is not None:
            os.chown(path, owner.uid, owner.gid)
