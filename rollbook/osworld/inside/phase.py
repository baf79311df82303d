"""One phase of a task: set it up, run its postconfig, or score it.

Reads a JSON request from stdin, writes a JSON result to the file it names, then leaves at once: playwright and
half-closed connections must not keep a finished evaluation alive. Everything printed is the log, never the result.
"""

import copy
import json
import logging
import math
import os
import sys
import traceback
from typing import Any

from . import attached, confine, stand_ins
from .bridge import Bridge
from .checks import Checks

# Troubles on this side of the wire that OSWorld's code logs, swallows, and then scores as a missing file.


_SWALLOWED = {
    # logger → beginnings of messages that mean that this machine, not the guest, failed
    "desktopenv.getter.file": ("IO error writing file", "Unexpected error writing file", "Error processing file"),
}


class Tripwires(logging.Handler):
    """Collects the messages that spoil a phase."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a message that is on the list."""
        message = record.getMessage()
        if message.startswith(_SWALLOWED.get(record.name, ())):
            self.found.append(message[:8000])


def set_tripwires() -> Tripwires:
    """Watch the loggers on the list from now on."""
    handler = Tripwires()
    for name in _SWALLOWED:
        logging.getLogger(name).addHandler(handler)
    return handler


# The worker removes secrets, which are unknown here, and cuts to less than this.
MESSAGE_LIMIT = 64_000
TRACEBACK_LIMIT = 128_000


def main() -> None:
    """Run the phase of the request on stdin."""
    request = json.load(sys.stdin)
    confine.confine(request)
    routes = {int(port): path for port, path in request["bridge"].items()}
    bridge = Bridge(routes) if routes else None
    result = _guarded(request)
    if bridge is not None and (lost := bridge.failures()):
        result = _failed("BridgeFailed", lost)
    _write(request["result_path"], result)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _guarded(request: dict[str, Any]) -> dict[str, Any]:
    """The phase's result; a failure where it raised, or where it swallowed something that spoils it."""
    tripwires = set_tripwires()
    try:
        result = {"completed": True, **_run(request)}
    except BaseException as error:  # SystemExit of guest-made code is an error too
        traceback.print_exc()
        result = _failed(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
    if stand_ins.used:
        return _failed("MissingPackage", f"not part of the lean environment: {', '.join(stand_ins.used)}")
    if tripwires.found and result["completed"]:
        return _failed("LocalFileError", "; ".join(tripwires.found))
    return result


def _run(request: dict[str, Any]) -> dict[str, Any]:
    stand_ins.install()
    task = copy.deepcopy(request["task"])
    if request["phase"] == "evaluate":
        task["evaluator"]["postconfig"] = []  # has run already, as a phase of its own
    env = attached.attach({**request, "task": task})
    if request["phase"] == "prepare":
        return {"value": bool(env.setup_controller.setup(env.config, False))}
    if request["phase"] == "postconfig":
        return {"value": bool(env.setup_controller.setup(env.evaluator.get("postconfig", []), False))}
    if request["terminal_action"] is not None:
        env.action_history.append(request["terminal_action"])
    checks = Checks(env)
    return {**_score(env.evaluate()), "checks": checks.words()[:MESSAGE_LIMIT]}


def _score(score: Any) -> dict[str, Any]:
    """The evaluator's answer: a finite number under `value`, or null; always its type and its text."""
    answer: dict[str, Any] = {"value": None, "score_type": type(score).__name__, "score_text": repr(score)[:200]}
    plain = score.item() if hasattr(score, "item") and not isinstance(score, bool | int | float) else score
    if isinstance(plain, bool):
        answer["value"] = int(plain)
    elif isinstance(plain, int):
        answer["value"] = plain
    elif isinstance(plain, float) and math.isfinite(plain):
        answer["value"] = float(plain)
    return answer


def _failed(kind: str, message: str, trace: str = "") -> dict[str, Any]:
    return {
        "completed": False,
        "error_type": kind,
        "error_message": message[:MESSAGE_LIMIT],
        "traceback": trace[-TRACEBACK_LIMIT:],
    }


def _write(path: str, result: dict[str, Any]) -> None:
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(result, file, allow_nan=False)
    os.replace(partial, path)
