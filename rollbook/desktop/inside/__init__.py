"""Source code that runs inside the guest. Shipped as text with each request; its modules are never imported here.

Python 3.8 and its standard library, because that is what the oldest OSWorld guests have.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

RECORDS_SERVICE = "/run/rollbook/records.socket"
"""In our desktop image: keeps records out of reach of the task's user."""
RECORDS_DIRECTORY = "/var/tmp/.rollbook"
"""In other guests. Not in /tmp nor in the home, which agents empty."""


def guest_program(part: str, request: dict[str, Any]) -> str:
    """The Python program that makes a part (`journal`, `phase`) answer one request over the guest's records."""
    places = {"service": RECORDS_SERVICE, "directory": RECORDS_DIRECTORY}
    return f"{source('store')}\n\n{source(part)}\n\nimport json\nmain(json.loads({json.dumps(places | request)!r}))\n"


@cache
def source(part: str) -> str:
    """The text of a module of this package."""
    return (files(__name__) / f"{part}.py").read_text()
