"""Reading fields of a request, with errors that name the field."""

import os
from pathlib import Path

import flask

from guest.errors import GuestError
from guest.settings import Settings


def settings() -> Settings:
    """The settings of the running server."""
    return flask.current_app.config["GUEST_SETTINGS"]


def json_body() -> dict:
    """The JSON object of the request, whatever its Content-Type says."""
    body = flask.request.get_json(force=True, silent=True)
    if not isinstance(body, dict):
        raise GuestError("the request body must be a JSON object")
    return body


def text_field(body: dict, name: str) -> str:
    """A field that must be a string with something in it."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise GuestError(f"field '{name}' must be a non-empty string")
    return value


def number_field(body: dict, name: str, default: float) -> float:
    """A field that must be a number of at least 0 if it is present."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise GuestError(f"field '{name}' must be a number of at least 0")
    return float(value)


def path_field(body: dict, name: str) -> Path:
    """A path of the guest: `~` and variables expanded, relative ones taken from the home directory."""
    expanded = os.path.expandvars(os.path.expanduser(text_field(body, name)))
    return Path.home() / expanded
