"""The application: routes put together, errors as JSON, served by waitress.

python3 -m guest.app
"""

import ctypes
import logging
import os
import platform
from pathlib import Path

import flask
import waitress
from werkzeug.exceptions import HTTPException

from guest import SERVER_NAME, VERSION, routes_execute, routes_files, routes_screen, routes_windows
from guest.accessibility.helper import AccessibilityHelper
from guest.errors import GuestError
from guest.settings import Settings, from_environment

log = logging.getLogger("guest")

PR_SET_DUMPABLE = 4


def create_app(settings: Settings) -> flask.Flask:
    """The guest server as a WSGI application."""
    app = flask.Flask(SERVER_NAME, static_folder=None)
    app.config["GUEST_SETTINGS"] = settings
    app.extensions["accessibility"] = AccessibilityHelper(settings.accessibility_timeout_s)
    for module in (routes_execute, routes_files, routes_screen, routes_windows):
        app.register_blueprint(module.routes)
    app.add_url_rule("/platform", view_func=lambda: platform.system(), endpoint="platform")
    app.add_url_rule("/nonce", view_func=lambda: _identity(settings), endpoint="nonce")
    app.register_error_handler(Exception, _as_json)
    return app


def _identity(settings: Settings) -> dict:
    """Which boot of which guest answers: the nonce is minted each time the container starts."""
    nonce = (settings.run_dir / "nonce").read_text().strip()
    return {"nonce": nonce, "server": SERVER_NAME, "version": VERSION}


def _as_json(error: Exception) -> tuple[dict, int]:
    if isinstance(error, GuestError):
        status = error.status
    elif isinstance(error, HTTPException):
        status = error.code or 500
    else:
        log.exception("unexpected failure of %s", flask.request.path)
        status = 500
    message = str(error) or type(error).__name__
    return {"status": "error", "message": message, "error": message}, status


def _forbid_tracing() -> None:
    """Let no other program of the same user read or change this process; programs that it starts are not concerned."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """Serve until killed."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    settings = from_environment()
    _forbid_tracing()
    os.chdir(Path.home())  # commands start there; the module path needed the server's own directory until now
    waitress.serve(
        create_app(settings),
        host="0.0.0.0",
        port=settings.port,
        threads=settings.threads,
        ident=SERVER_NAME,
        max_request_body_size=4 * 1024**3,
        outbuf_overflow=256 * 1024**2,  # answers wait in memory: on a full disk a file would cut them off
        clear_untrusted_proxy_headers=True,
    )


if __name__ == "__main__":
    main()
