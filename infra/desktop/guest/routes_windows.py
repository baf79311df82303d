"""Windows: activate and close by title or class. Both answer 200 also when nothing matched, as upstream does."""

import flask

from guest import windows
from guest.requests import json_body, text_field

routes = flask.Blueprint("windows", __name__)


@routes.post("/setup/activate_window")
def activate_window() -> str:
    """Raise and focus the first window that matches."""
    return _act("a", "activated")


@routes.post("/setup/close_window")
def close_window() -> str:
    """Ask the first window that matches to close."""
    return _act("c", "closed")


def _act(action: str, done: str) -> str:
    body = json_body()
    name = text_field(body, "window_name")
    matched = windows.act(
        action, name, strict=bool(body.get("strict", False)), by_class=bool(body.get("by_class", False))
    )
    return f"Window {done} successfully" if matched else f"No window matched {name!r}"
