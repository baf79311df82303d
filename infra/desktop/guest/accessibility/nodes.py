"""Small questions to one accessible object; an object that has gone away answers with nothing."""

import re
from collections.abc import Iterator

from gi.repository import Atspi, GLib

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NOT_IN_NAME = re.compile(r"[^\w.-]")
_EMBEDDED_OBJECT = "\ufffc"


def clean(text: str | None) -> str:
    """Text without the characters that XML cannot hold, nor place holders of embedded objects."""
    return _NOT_IN_XML.sub("", text or "").replace(_EMBEDDED_OBJECT, "")


def xml_name(text: str) -> str:
    """A role, state or attribute as an XML name: blanks become dashes."""
    name = _NOT_IN_NAME.sub("-", text.strip()) or "unknown"
    return name if name[0].isalpha() or name[0] == "_" else f"_{name}"


def children(node: Atspi.Accessible, limit: int) -> Iterator[Atspi.Accessible]:
    """The first `limit` children that still exist."""
    try:
        count = min(node.get_child_count(), limit)
    except GLib.Error:
        return
    for index in range(count):
        try:
            child = node.get_child_at_index(index)
        except GLib.Error:
            continue
        if child is not None:
            yield child


def states(node: Atspi.Accessible) -> set[str]:
    """Names of the states that hold, such as `focused` or `single-line`."""
    return {state.value_nick for state in node.get_state_set().get_states()}


def text(node: Atspi.Accessible) -> str:
    """The whole text of an object that has one."""
    if node.get_text_iface() is None:
        return ""
    return clean(Atspi.Text.get_text(node, 0, Atspi.Text.get_character_count(node)))
