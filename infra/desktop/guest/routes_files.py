"""Files and the desktop's background."""

import mimetypes
import os
import shutil
import time
import urllib.request
from pathlib import Path

import flask

from guest import processes, wallpaper, windows
from guest.errors import GuestError
from guest.requests import json_body, path_field, settings, text_field

routes = flask.Blueprint("files", __name__)
MAX_TREE_DEPTH = 40


@routes.post("/setup/upload")
def upload() -> str:
    """Store the multipart field `file_data` at `file_path`; missing directories are made."""
    path = path_field(flask.request.form, "file_path")
    data = flask.request.files.get("file_data")
    if data is None:
        raise GuestError("multipart field 'file_data' is missing")
    with _storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        data.save(path)
    return "File Uploaded"


@routes.post("/setup/download_file")
def download_file() -> str:
    """Fetch `url` from inside the guest and store it at `path`."""
    body = json_body()
    url, path = text_field(body, "url"), path_field(body, "path")
    if not url.startswith(("http://", "https://")):
        raise GuestError("field 'url' must begin with http:// or https://")
    with _storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=300) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    return "File downloaded successfully"


@routes.post("/file")
def file() -> flask.Response:
    """The bytes of form field `file_path`; 404 when there is no such file, 403 when the user may not read it."""
    path = path_field(flask.request.form, "file_path")
    if not path.is_file():
        raise GuestError(f"File not found: {path}", 404)
    try:
        return flask.send_file(path, as_attachment=True)
    except PermissionError as error:
        raise GuestError(f"not readable for the desktop's user: {path}", 403) from error


@routes.post("/setup/open_file")
def open_file() -> str:
    """Open a file with its application, or start a command, and wait until its window is there."""
    path = path_field(json_body(), "path")
    if path.exists():
        processes.launch(["xdg-open", str(path)], shell=False)
        names = {path.name, path.stem}
    elif shutil.which(path.name):
        processes.launch([path.name], shell=False)
        names = {path.name}
    else:
        raise GuestError(f"File not found: {path}", 404)
    _wait_for_window({name.lower() for name in names}, settings().open_timeout_s)
    return "File opened successfully"


@routes.post("/list_directory")
def list_directory() -> dict:
    """The directory `path` with everything below it."""
    path = path_field(json_body(), "path")
    if not path.is_dir():
        raise GuestError(f"not a directory: {path}", 404)
    return {"directory_tree": _tree(path, 0)}


@routes.post("/desktop_path")
def desktop_path() -> dict:
    """Return the user's desktop directory."""
    path = Path.home() / "Desktop"
    if not path.is_dir():
        raise GuestError("the user has no Desktop directory", 404)
    return {"desktop_path": str(path)}


@routes.post("/setup/change_wallpaper")
def change_wallpaper() -> str:
    """Make the picture at `path` the desktop's background."""
    path = path_field(json_body(), "path")
    if not path.is_file():
        raise GuestError(f"File not found: {path}", 404)
    wallpaper.change(path)
    return "Wallpaper changed successfully"


@routes.post("/wallpaper")
def current_wallpaper() -> flask.Response:
    """The bytes of the picture that the desktop settings name as background."""
    path = wallpaper.current()
    if path is None or not path.is_file():
        raise GuestError(f"the background picture does not exist: {path}", 404)
    return flask.send_file(path, mimetype=mimetypes.guess_type(path.name)[0] or "application/octet-stream")


class _storing:
    """Turn a failure to write into an answer that names the path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError):
            raise GuestError(f"cannot store {self._path}: {error}", 500) from error


def _wait_for_window(names: set[str], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for window in windows.listed():
            if any(name in window.title.lower() or name in window.wm_class.lower() for name in names):
                return
        time.sleep(0.2)
    raise GuestError(f"no window with {' or '.join(sorted(names))} appeared within {limit_s:g} s", 500)


def _tree(path: Path, depth: int) -> dict:
    node: dict = {"type": "directory", "name": path.name, "children": []}
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        return {"type": "error", "name": path.name, "content": str(error)}
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth < MAX_TREE_DEPTH:
            node["children"].append(_tree(Path(entry.path), depth + 1))
        else:
            kind = "directory" if entry.is_dir(follow_symlinks=False) else "file"
            node["children"].append({"type": kind, "name": entry.name})
    return node
