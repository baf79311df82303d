"""Reads of one accessible object. Only an object that is gone may be left out: an application that is alive and does
not answer is an error, because a reader of the tree would take the omission for "not there".
"""

import os
import re
from collections.abc import Iterator

from gi.repository import Atspi, GLib

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NOT_IN_NAME = re.compile(r"[^\w.-]")
_EMBEDDED_OBJECT = "\ufffc"


CALL_TIMEOUT_S = 10
"""An application that is busy, such as an office suite at start, takes seconds for its first answer."""


class SilentApplication(Exception):
    """An application is alive and does not answer within the call's timeout."""


def clean(text: str | None) -> str:
    """Text without the characters that XML cannot hold, nor place holders of embedded objects."""
    return _NOT_IN_XML.sub("", text or "").replace(_EMBEDDED_OBJECT, "")


def xml_name(text: str) -> str:
    """A role, state or attribute as an XML name: blanks become dashes."""
    name = _NOT_IN_NAME.sub("-", text.strip()) or "unknown"
    return name if name[0].isalpha() or name[0] == "_" else f"_{name}"


def require_gone(application: Atspi.Accessible) -> None:
    """Return after a failed read if the object is gone; raises SilentApplication if its application is silent.

    The application is gone when the bus or the kernel no longer knows its process. A live application that answers
    the control read has closed the object in the meantime, for example a menu.
    """
    try:
        process_id = application.get_process_id()  # answered by the bus daemon, not by the application
    except GLib.Error:
        return
    if not _alive(process_id):
        return
    try:
        application.clear_cache()
        application.get_role_name()  # unlike name, state and child count it raises when there is no reply
    except GLib.Error as error:
        if _alive(process_id):
            raise SilentApplication(f"application with process id {process_id} does not answer: {error}") from error


def process_name(application: Atspi.Accessible) -> str:
    """The kernel's name of an application's process; empty when it is gone or unknown."""
    try:
        with open(f"/proc/{application.get_process_id()}/comm") as file:
            return file.read().rstrip("\n")
    except (GLib.Error, OSError):
        return ""


def _alive(process_id: int) -> bool:
    try:
        with open(f"/proc/{process_id}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return False
    return process_id != os.getpid() and state not in (b"Z", b"X")


def applications(desktop: Atspi.Accessible, limit: int) -> Iterator[Atspi.Accessible]:
    """The first `limit` applications on the accessibility bus; raises GLib.Error if the registry does not answer."""
    for index in range(min(desktop.get_child_count(), limit)):
        application = desktop.get_child_at_index(index)
        if application is not None:
            yield application


def children(node: Atspi.Accessible, application: Atspi.Accessible, limit: int) -> Iterator[Atspi.Accessible]:
    """The first `limit` children that still exist; raises SilentApplication."""
    try:
        count = min(node.get_child_count(), limit)
    except GLib.Error:
        count = -1
    if count < 0:
        require_gone(application)
    for index in range(count):
        try:
            child = node.get_child_at_index(index)
        except GLib.Error:
            require_gone(application)
            continue
        if child is not None:
            yield child


def states(node: Atspi.Accessible) -> set[str]:
    """Names of the states that hold, such as `focused` or `single-line`."""
    names = {state.value_nick for state in node.get_state_set().get_states()}
    if not names:
        node.get_role_name()  # the state set of an object that does not answer is empty, without an error
    return names


def text(node: Atspi.Accessible) -> str:
    """The whole text of an object that has one."""
    if node.get_text_iface() is None:
        return ""
    return clean(Atspi.Text.get_text(node, 0, Atspi.Text.get_character_count(node)))
