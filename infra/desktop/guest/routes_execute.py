"""Commands: /execute and its relatives, /setup/launch, /run_python, /run_bash_script."""

import tempfile
import time
from dataclasses import asdict

import flask

from guest import processes, windows
from guest.errors import CommandTimeout, GuestError
from guest.requests import json_body, number_field, settings, text_field

routes = flask.Blueprint("execute", __name__)


@routes.post("/execute")
@routes.post("/setup/execute")
def execute() -> dict:
    """Run a command and answer its outputs and return code; a non-zero code is still a success of the route."""
    body = json_body()
    return {"status": "success", **asdict(_run(body))}


@routes.post("/setup/execute_with_verification")
def execute_with_verification() -> tuple[dict, int]:
    """Run a command, then wait until a window exists and a check command succeeds (either may be absent)."""
    body = json_body()
    wanted = body.get("verification") or {}
    if not isinstance(wanted, dict):
        raise GuestError("field 'verification' must be an object")
    max_wait_s = number_field(body, "max_wait_time", 10.0)
    interval_s = max(number_field(body, "check_interval", 1.0), 0.05)
    answer = {"status": "success", **asdict(_run(body))}
    started = time.monotonic()
    while True:
        verification = _verify(wanted)
        waited_s = time.monotonic() - started
        answer |= {"verification": verification, "wait_time": round(waited_s, 3)}
        if all(verification.values()):
            return answer, 200
        if waited_s >= max_wait_s:
            missing = ", ".join(name for name, holds in verification.items() if not holds)
            return {**answer, "status": "error", "message": f"not verified after {max_wait_s:g} s: {missing}"}, 500
        time.sleep(interval_s)


@routes.post("/setup/launch")
def launch() -> str:
    """Start a program without waiting for it."""
    body = json_body()
    shell = bool(body.get("shell", False))
    command = processes.parse(body.get("command"), shell)
    processes.launch(command, shell=shell)
    return f"{command if isinstance(command, str) else ' '.join(command)} launched successfully"


@routes.post("/run_python")
def run_python() -> tuple[dict, int]:
    """Run Python source as a script of its own; a script that fails is an answer, not an error of the route."""
    code = text_field(json_body(), "code")
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as script:
        script.write(code)
        script.flush()
        try:
            done = _run_bounded(["python", script.name], settings().execute_timeout_s)
        except CommandTimeout as timeout:
            failure = {"status": "error", "message": str(timeout), "output": "", "error": str(timeout)}
            return {**failure, "return_code": -1, "need_more": False}, 500
    return {
        "status": "success" if done.returncode == 0 else "error",
        "message": done.output + done.error,
        "output": done.output,
        "error": done.error,
        "return_code": done.returncode,
        "out_of_memory": done.out_of_memory,
        "need_more": False,
    }, 200


@routes.post("/run_bash_script")
def run_bash_script() -> dict:
    """Run a bash script with both outputs merged.

    A script that reaches its limit is answered with 200 and return code -1: the stock client repeats whatever is
    not 200, and a script that ran to its limit must not run again behind the caller's back.
    """
    body = json_body()
    limit_s = number_field(body, "timeout", 100.0)
    working_dir = body.get("working_dir") or None
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as script:
        script.write(text_field(body, "script"))
        script.flush()
        try:
            done = _run_bounded(["/bin/bash", script.name], limit_s, cwd=working_dir, merge=True)
        except CommandTimeout as timeout:
            return {"status": "error", "output": "", "error": str(timeout), "returncode": -1}
    status = "success" if done.returncode == 0 else "error"
    return {"status": status, **asdict(done)}


def _run(body: dict) -> processes.Completed:
    shell = bool(body.get("shell", False))
    return _run_bounded(processes.parse(body.get("command"), shell), settings().execute_timeout_s, shell=shell)


def _run_bounded(
    command: processes.Command,
    timeout_s: float,
    *,
    shell: bool = False,
    cwd: str | None = None,
    merge: bool = False,
) -> processes.Completed:
    limit = settings().max_output_bytes
    return processes.run(command, shell=shell, timeout_s=timeout_s, max_output_bytes=limit, cwd=cwd, merge=merge)


def _verify(wanted: dict) -> dict[str, bool]:
    verification = {}
    if name := wanted.get("window_exists"):
        verification["window_exists"] = windows.title_contains(str(name))
    if check := wanted.get("command_success"):
        shell = isinstance(check, str)
        try:
            verification["command_success"] = _run_bounded(check, 5.0, shell=shell).returncode == 0
        except GuestError:
            verification["command_success"] = False
    return verification
