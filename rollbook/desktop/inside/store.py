"""Records that are written once: claims, results, the ends of phases.

Our desktop image keeps them in a service of root's, out of reach of the task's user. Other guests keep them in a
directory, which that user can remove; the record `opened` then goes with the others, and its absence shows the loss.
"""

# mypy: ignore-errors
# ruff: noqa: UP031

import json
import os
import socket
import threading
import time


class Service:
    """The records of root's service; a request that it does not serve within ten seconds raises OSError."""

    def __init__(self, path):
        self.path = path

    def ask(self, **request):
        with self.connect() as connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            answer = json.loads(stream.readline())
        if "error" in answer:
            raise OSError("records: %s" % answer["error"])
        return answer

    def connect(self):
        """A connection to the service, which is away for a moment after its end."""
        deadline = time.monotonic() + 10
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(10)
            try:
                connection.connect(self.path)
                return connection
            except OSError:
                connection.close()
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def put(self, name, text):
        """Write a record unless it exists. Returns whether this call wrote it."""
        return self.ask(put=name, text=text)["written"]

    def get(self, name):
        return self.ask(get=name)["text"]

    def names(self):
        return self.ask(list=True)["names"]


class Directory:
    """The same in a directory of the task's user."""

    def __init__(self, path):
        self.path = path

    def put(self, name, text):
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        draft = os.path.join(self.path, ".%d.%d" % (os.getpid(), threading.get_ident()))
        with open(draft, "w") as file:
            file.write(text)
        try:
            os.link(draft, os.path.join(self.path, name))
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
        return True

    def get(self, name):
        try:
            with open(os.path.join(self.path, name)) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def names(self):
        return [name for name in os.listdir(self.path) if name[0] != "."] if os.path.isdir(self.path) else []


def open_store(request):
    """The store that this guest offers."""
    return Service(request["service"]) if os.path.exists(request["service"]) else Directory(request["directory"])
