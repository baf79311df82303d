"""The text of the focused gnome-terminal."""

from gi.repository import Atspi, GLib

from guest.accessibility import nodes

APPLICATION = "gnome-terminal-server"
PROCESS = APPLICATION[:15]
"""The kernel keeps 15 characters of a process name."""


def focused_text(desktop: Atspi.Accessible) -> str | None:
    """Text of the focused terminal in the active window, without trailing blanks; None when there is none.

    Raises SilentApplication when the terminal's application does not answer; a silent other one does not matter.
    """
    for application in nodes.applications(desktop, 1024):
        try:
            application.get_role_name()  # raises when there is no reply; the name would be empty
            if application.get_name() != APPLICATION:
                continue
            for frame in nodes.children(application, application, 1024):
                if "active" in nodes.states(frame):
                    terminal = _focused_terminal(frame, application, depth=0)
                    if terminal is not None:
                        return nodes.text(terminal).rstrip()
        except GLib.Error:
            if nodes.process_name(application) in ("", PROCESS):
                nodes.require_gone(application)
    return None


def _focused_terminal(node: Atspi.Accessible, application: Atspi.Accessible, depth: int) -> Atspi.Accessible | None:
    if node.get_role() == Atspi.Role.TERMINAL:
        return node if "focused" in nodes.states(node) else None
    if depth < 50:
        for child in nodes.children(node, application, 1024):
            terminal = _focused_terminal(child, application, depth + 1)
            if terminal is not None:
                return terminal
    return None
