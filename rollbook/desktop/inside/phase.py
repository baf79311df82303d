"""Claims of a task's phases inside the guest: a phase that has begun on this desktop never begins again on it.

Shipped behind `store.py`. `main(request)` prints one line that starts with the marker; the host reads nothing else.
"""

# mypy: ignore-errors
# ruff: noqa: F821, UP031

import json

MARK = "@@rollbook-phase@@"


def claim(store, phase, token, first):
    """`claimed` for the try that carries the token of the claim, `done` after its end, else `interrupted`; with what
    was noted at the end."""
    if phase == "prepare":
        store.put("opened", "setup")
    if not store.put(phase + ".claimed", token):
        note = store.get(phase + ".done")
        if note is not None:
            return "done", note
    complete = first or store.get("opened") == "setup"  # else an earlier claim may have been removed
    return ("claimed" if complete and store.get(phase + ".claimed") == token else "interrupted"), ""


def finish(store, phase, note):
    """Record the end; the first note stays."""
    store.put(phase + ".done", note)
    return "done", note


def main(request):
    """Claim a phase, or record its end."""
    store = open_store(request)
    if request["verb"] == "claim":
        state, note = claim(store, request["phase"], request["token"], request["first"])
    else:
        state, note = finish(store, request["phase"], request["note"])
    print("\n%s %s" % (MARK, json.dumps({"state": state, "note": note})))
