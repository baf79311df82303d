"""Windows through wmctrl, the tool that the protocol's fields are named after."""

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """A managed window: its WM_CLASS (`instance.Class`) and title."""

    wm_class: str
    title: str


def listed() -> list[Window]:
    """All managed windows; empty while no window manager answers."""
    answer = subprocess.run(["wmctrl", "-lx"], capture_output=True, timeout=10)
    windows = []
    for line in answer.stdout.decode("utf-8", errors="replace").splitlines():
        columns = line.split(None, 4)  # id, desktop, class, host, title
        if len(columns) >= 4:
            windows.append(Window(columns[2], columns[4] if len(columns) == 5 else ""))
    return windows


def title_contains(text: str) -> bool:
    """Return whether the title of a window contains the text."""
    return any(text in window.title for window in listed())


def act(action: str, name: str, *, strict: bool, by_class: bool) -> bool:
    """`wmctrl -a NAME` (activate) or `-c NAME` (close), by class or exact title if asked; True if one matched."""
    options = ("x" if by_class else "") + ("F" if strict else "")
    flags = [f"-{options}{action}"] if options else [f"-{action}"]
    return subprocess.run(["wmctrl", *flags, name], capture_output=True, timeout=10).returncode == 0
