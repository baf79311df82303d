"""Claims of a task's phases inside the guest: a phase that has begun on this desktop never begins again on it.

`main(request)` prints one line that starts with the marker; the host reads nothing else.
"""

# mypy: ignore-errors
# ruff: noqa: UP031

import json
import os

MARK = "@@rollbook-phase@@"


def claim(stem, token):
    """`claimed` for the try that carries the token of the claim, `done` after its end, else `interrupted`."""
    os.makedirs(os.path.dirname(stem), mode=0o700, exist_ok=True)
    try:
        handle = os.open(stem + ".claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(handle, token.encode())
        os.close(handle)
        return "claimed"
    except FileExistsError:
        if os.path.exists(stem + ".done"):
            return "done"
        return "claimed" if open(stem + ".claim").read() == token else "interrupted"


def main(request):
    """Claim a phase, or record its end."""
    stem = os.path.join(request["directory"], request["phase"])
    if request["verb"] == "claim":
        state = claim(stem, request["token"])
    else:
        open(stem + ".done", "w").close()
        state = "done"
    print("\n%s %s" % (MARK, json.dumps({"state": state})))
