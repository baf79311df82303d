"""The text of the focused gnome-terminal."""

from gi.repository import Atspi, GLib

from guest.accessibility import nodes

APPLICATION = "gnome-terminal-server"


def focused_text(desktop: Atspi.Accessible) -> str | None:
    """Text of the focused terminal in the active window, without trailing blanks; None when there is none."""
    for application in nodes.children(desktop, 1024):
        try:
            if application.get_name() != APPLICATION:
                continue
            for frame in nodes.children(application, 1024):
                if "active" in nodes.states(frame):
                    terminal = _focused_terminal(frame, depth=0)
                    if terminal is not None:
                        return nodes.text(terminal).rstrip()
        except GLib.Error:
            continue
    return None


def _focused_terminal(node: Atspi.Accessible, depth: int) -> Atspi.Accessible | None:
    if node.get_role() == Atspi.Role.TERMINAL:
        return node if "focused" in nodes.states(node) else None
    if depth < 50:
        for child in nodes.children(node, 1024):
            found = _focused_terminal(child, depth + 1)
            if found is not None:
                return found
    return None
