"""The background: the desktop settings are the truth that evaluators read; the file manager paints it."""

import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

SCHEMA = "org.gnome.desktop.background"


def current() -> Path | None:
    """The picture that the settings name, or None when they name none on this machine."""
    answer = subprocess.run(["gsettings", "get", SCHEMA, "picture-uri"], capture_output=True, text=True, timeout=10)
    address = urlsplit(answer.stdout.strip().strip("'"))
    if address.scheme not in ("", "file") or not address.path:
        return None
    return Path(unquote(address.path))


def change(path: Path) -> None:
    """Name the picture in the settings and paint it."""
    for key in ("picture-uri", "picture-uri-dark"):
        subprocess.run(["gsettings", "set", SCHEMA, key, path.as_uri()], check=True, timeout=10)
    subprocess.run(["pcmanfm", f"--set-wallpaper={path}", "--wallpaper-mode=stretch"], check=True, timeout=10)
