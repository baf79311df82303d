"""Claims of a task's phases inside the guest: a phase that has begun on this desktop never begins again on it.

`main(request)` prints one line that starts with the marker; the host reads nothing else.
"""

# mypy: ignore-errors
# ruff: noqa: UP031

import json
import os

MARK = "@@rollbook-phase@@"


def claim(stem, token):
    """`claimed` for the try that carries the token of the claim, `done` after its end, else `interrupted`; with what
    was noted at the end."""
    os.makedirs(os.path.dirname(stem), mode=0o700, exist_ok=True)
    try:
        handle = os.open(stem + ".claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(handle, token.encode())
        os.close(handle)
        return "claimed", ""
    except FileExistsError:
        if os.path.exists(stem + ".done"):
            return "done", open(stem + ".done").read()
        return ("claimed" if open(stem + ".claim").read() == token else "interrupted"), ""


def finish(stem, note):
    """Record the end, whole or not at all."""
    with open(stem + ".partial", "w") as file:
        file.write(note)
    os.rename(stem + ".partial", stem + ".done")
    return "done", note


def main(request):
    """Claim a phase, or record its end."""
    stem = os.path.join(request["directory"], request["phase"])
    if request["verb"] == "claim":
        state, note = claim(stem, request["token"])
    else:
        state, note = finish(stem, request["note"])
    print("\n%s %s" % (MARK, json.dumps({"state": state, "note": note})))
