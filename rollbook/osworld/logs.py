"""The evaluator's log: bounded, and without the desktop's password."""

from pathlib import Path

LOG_LIMIT = 4 * 2**20
"""Bytes of a log that are kept: its first and its last half."""

WELL_KNOWN_PASSWORDS = frozenset({"", "password", "osworld-public-evaluation"})
"""OSWorld's published defaults: no secrets, and too common as words to blot out."""


def redact(text: str, password: str) -> str:
    """The text without the password, unless that is one of OSWorld's published ones."""
    return text if password in WELL_KNOWN_PASSWORDS else text.replace(password, "[password]")


def tidy_log(path: Path, password: str) -> None:
    """Cut the middle out of an oversized log and blot out the password. The file need not exist."""
    path.touch()
    size = path.stat().st_size
    if size <= LOG_LIMIT and password in WELL_KNOWN_PASSWORDS:
        return
    with path.open("rb") as file:
        data = file.read(LOG_LIMIT // 2 if size > LOG_LIMIT else size)
        if size > LOG_LIMIT:
            file.seek(size - LOG_LIMIT // 2)
            data += f"\n[{size - LOG_LIMIT} bytes left out]\n".encode() + file.read(LOG_LIMIT // 2)
    path.write_text(redact(data.decode("utf-8", "replace"), password))
