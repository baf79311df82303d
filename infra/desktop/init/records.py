"""Records that the desktop's user may write and read, but neither change nor remove.

The journal of actions and the claims of setup and postconfig are kept here: an agent that empties /tmp or its home must
not make an action run twice. Only root can remove a record.

A connection carries lines of JSON, one answer to each request: `{"put": name, "text": text}` writes a record unless it
exists and is answered with `written`, `{"get": name}` with `text` or null, `{"list": true}` with `names`.
"""

import contextlib
import json
import os
import re
import socket
import threading
from pathlib import Path

from init.accounts import ROOT_ENVIRONMENT, RUN_DIR
from init.services import OWN_DIRECTORY, Service, module

SOCKET = RUN_DIR / "records.socket"
DIRECTORY = RUN_DIR / "records"
MAX_LINE_BYTES = 1024 * 1024
CLIENT_TIMEOUT_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,120}")


def service() -> Service:
    """The service that init starts."""
    return Service("records", module("init.records"), ROOT_ENVIRONMENT, directory=OWN_DIRECTORY)


def put(name: str, text: str) -> bool:
    """Write a record whole; False when there is one of this name."""
    DIRECTORY.mkdir(mode=0o755, exist_ok=True)  # root may have removed it: what is written from then on is kept
    draft = DIRECTORY / f".{threading.get_ident()}"
    draft.write_text(text)
    try:
        os.link(draft, DIRECTORY / name)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def get(name: str) -> str | None:
    """A record's text; None without one."""
    try:
        return (DIRECTORY / name).read_text()
    except FileNotFoundError:
        return None


def answer(request: dict) -> dict:
    """Answer one request; raises ValueError and OSError."""
    if "list" in request:
        return {"names": [name for name in os.listdir(DIRECTORY) if not name.startswith(".")]}
    name = request.get("put", request.get("get"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("a record's name has up to 121 letters, digits, dots, dashes")
    return {"written": put(name, str(request["text"]))} if "put" in request else {"text": get(name)}


def _serve(connection: socket.socket) -> None:
    connection.settimeout(CLIENT_TIMEOUT_S)
    with contextlib.suppress(OSError), connection, connection.makefile("rwb") as stream:
        while line := stream.readline(MAX_LINE_BYTES):
            try:
                reply = answer(json.loads(line))
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()


def main() -> None:
    """Accept clients until killed."""
    DIRECTORY.mkdir(mode=0o755, exist_ok=True)
    fresh = f"{SOCKET}.new"
    Path(fresh).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(fresh)
        os.chmod(fresh, 0o666)
        listener.listen(64)
        os.rename(fresh, SOCKET)  # never absent once it was there: its absence means a guest without this service
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
