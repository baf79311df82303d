"""Views of the desktop: screenshot, pointer, sizes, accessibility tree, terminal text; and recording's refusal."""

import time

import flask

from guest.accessibility.helper import AccessibilityHelper
from guest.display import screen
from guest.errors import GuestError
from guest.requests import settings

routes = flask.Blueprint("screen", __name__)
_started = time.monotonic()


@routes.get("/screenshot")
def screenshot() -> flask.Response:
    """The screen as PNG with the pointer; 503 until the desktop has been drawn for the first time."""
    limits = settings()
    drawn = (limits.run_dir / "ready").exists()
    if not drawn and time.monotonic() - _started < limits.ready_grace_s:
        raise GuestError("the desktop is still starting", 503)
    return flask.Response(screen.png(), mimetype="image/png")


@routes.get("/accessibility")
def accessibility() -> dict:
    """The accessibility tree of the whole desktop as XML text."""
    return {"AT": _helper().ask("tree")}


@routes.get("/terminal")
def terminal() -> dict:
    """The text of the focused gnome-terminal, or null when none has the focus."""
    return {"output": _helper().ask("terminal"), "status": "success"}


@routes.get("/cursor_position")
def cursor_position() -> flask.Response:
    """`[x, y]` of the pointer."""
    return flask.jsonify(list(screen.pointer()))


@routes.post("/screen_size")
def screen_size() -> dict:
    """Width and height of the screen."""
    width, height = screen.size()
    return {"width": width, "height": height}


@routes.post("/window_size")
def window_size() -> dict:
    """Size of the window with the WM_CLASS of form field `app_class_name`; 404 without one."""
    app_class = flask.request.form.get("app_class_name")
    if not app_class:
        raise GuestError("form field 'app_class_name' is missing")
    size = screen.window_size(app_class)
    if size is None:
        raise GuestError(f"no window has the class {app_class!r}", 404)
    return {"width": size[0], "height": size[1]}


@routes.post("/start_recording")
@routes.post("/end_recording")
def recording() -> None:
    """Refused: this image holds no video encoder."""
    raise GuestError("recording is not part of the slim desktop image", 501)


def _helper() -> AccessibilityHelper:
    return flask.current_app.extensions["accessibility"]
