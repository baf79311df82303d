"""The desktop's accessibility tree in OSWorld's XML vocabulary."""

import time
import xml.etree.ElementTree as ET

from gi.repository import Atspi, GLib

from guest.accessibility import nodes

MAX_DEPTH = 50
MAX_CHILDREN = 1024
_BASE = "https://accessibility.ubuntu.example.org/ns/"
NAMESPACES = {
    "st": _BASE + "state",
    "attr": _BASE + "attributes",
    "cp": _BASE + "component",
    "doc": _BASE + "document",
    "docattr": _BASE + "document/attributes",
    "txt": _BASE + "text",
    "val": _BASE + "value",
    "act": _BASE + "action",
}
for _prefix, _uri in NAMESPACES.items():
    ET.register_namespace(_prefix, _uri)


class Truncated(Exception):
    """The walk reached its deadline: part of the tree is missing."""


def as_xml(desktop: Atspi.Accessible, deadline: float) -> str:
    """The tree as text.

    Raises Truncated at `deadline` (monotonic seconds) and SilentApplication: a partial tree would be read as a
    complete one.
    """
    root = ET.Element("desktop-frame")
    for application in nodes.applications(desktop, MAX_CHILDREN):
        _append(root, application, application, 1, deadline)
    return ET.tostring(root, encoding="unicode")


def _append(
    parent: ET.Element, node: Atspi.Accessible, application: Atspi.Accessible, depth: int, deadline: float
) -> None:
    if time.monotonic() > deadline:
        raise Truncated("the tree is too large to be read in time")
    started = time.monotonic()
    try:
        element = _element(node)
    except GLib.Error:
        nodes.require_gone(application)
        return
    if time.monotonic() - started >= nodes.CALL_TIMEOUT_S:  # reads of names and texts give up without an error
        raise nodes.SilentApplication("an application did not answer in time")
    parent.append(element)
    if depth < MAX_DEPTH:
        for child in nodes.children(node, application, MAX_CHILDREN):
            _append(element, child, application, depth + 1, deadline)


def _element(node: Atspi.Accessible) -> ET.Element:
    element = ET.Element(nodes.xml_name(node.get_role_name() or "unknown"))
    element.set("name", nodes.clean(node.get_name()))
    states = nodes.states(node)
    for state in sorted(states):
        element.set(_qualified("st", state), "true")
    _set_all(element, "attr", node.get_attributes())
    if node.get_document_iface() is not None:
        _set_all(element, "docattr", Atspi.Document.get_document_attributes(node))
    if {"showing", "visible"} <= states:
        _set_place(element, node)
    if node.get_value_iface() is not None:
        _set_value(element, node)
    if node.get_action_iface() is not None:
        _set_actions(element, node)
    element.text = nodes.text(node) or None
    return element


def _set_all(element: ET.Element, prefix: str, values: dict[str, str] | None) -> None:
    for key, value in sorted((values or {}).items()):
        element.set(_qualified(prefix, key), nodes.clean(value))


def _set_place(element: ET.Element, node: Atspi.Accessible) -> None:
    if node.get_component_iface() is None:
        return
    box = Atspi.Component.get_extents(node, Atspi.CoordType.SCREEN)
    if box.width > 0 and box.height > 0:
        element.set(_qualified("cp", "screencoord"), f"({box.x}, {box.y})")
        element.set(_qualified("cp", "size"), f"({box.width}, {box.height})")


def _set_value(element: ET.Element, node: Atspi.Accessible) -> None:
    for key, ask in (
        ("value", Atspi.Value.get_current_value),
        ("min", Atspi.Value.get_minimum_value),
        ("max", Atspi.Value.get_maximum_value),
        ("step", Atspi.Value.get_minimum_increment),
    ):
        element.set(_qualified("val", key), str(ask(node)))


def _set_actions(element: ET.Element, node: Atspi.Accessible) -> None:
    for index in range(min(Atspi.Action.get_n_actions(node), 16)):
        name = nodes.xml_name(Atspi.Action.get_action_name(node, index) or "action")
        element.set(_qualified("act", f"{name}_desc"), nodes.clean(Atspi.Action.get_action_description(node, index)))
        element.set(_qualified("act", f"{name}_kb"), nodes.clean(Atspi.Action.get_key_binding(node, index)))


def _qualified(prefix: str, name: str) -> str:
    return f"{{{NAMESPACES[prefix]}}}{nodes.xml_name(name)}"
