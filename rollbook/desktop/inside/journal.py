"""The journal inside the guest: a claim and a result per op id, see docs/explanation/action-journal.md.

Shipped behind `store.py`, whose `open_store` it uses. `main(request)` prints one line that starts with the marker; the
host reads nothing else.
"""

# mypy: ignore-errors
# ruff: noqa: F821, SIM105, UP031

import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback

MARK = "@@rollbook-journal@@"


class Op:
    """The records of one op id. Their names are a digest, because an op id may hold any character."""

    def __init__(self, store, op_id):
        self.op_id = op_id
        self.store = store
        self.stem = hashlib.sha256(op_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]

    def claim(self, facts):
        """True for exactly one caller, ever."""
        return self.store.put(self.stem + ".claim", json.dumps(facts))

    def began(self, claim):
        """Note that the claimed action begins now, in this process."""
        self.store.put("%s.begun-%s-%s" % (self.stem, claim["pid"], claim["birth"]), json.dumps({"op": self.op_id}))

    def publish(self, result):
        """Record how the op ended and return what is recorded: the first result stays."""
        self.store.put(self.stem + ".result", json.dumps(result))
        return parse(self.result())

    def result(self):
        return self.store.get(self.stem + ".result")

    def state(self):
        """Return the recorded state of the op."""
        text = self.store.get(self.stem + ".claim")
        claim = parse(text) or {}
        living = alive(claim)
        result = self.result()  # after the look at the process: it may just have finished
        if result is not None:
            return {"state": "done", "claim": claim, "result": parse(result)}
        if text is not None:
            return {"state": "running" if living else "orphaned", "claim": claim}
        # without the record of setup, records have been removed, and this op's may have been among them
        return {"state": "absent" if self.store.get("opened") == "setup" else "lost"}


def parse(text):
    """A record's content; None when there is none or it is not a JSON object."""
    try:
        content = None if text is None else json.loads(text)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def birth(pid):
    """Return the start time of a process in clock ticks: with the pid it names one process. None when it is dead."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def alive(claim):
    """Return whether the process that claimed the op still runs. A spoilt claim names none."""
    return bool(claim) and birth(claim["pid"]) == claim["birth"]


def reply(handle, answer):
    """One ASCII line on the stdout that the process was started with, in one write."""
    os.write(handle, ("\n%s %s\n" % (MARK, json.dumps(answer))).encode())


def outcome(claim, status, error=None):
    """A result's record."""
    return {"status": status, "error": error, "started_at": claim.get("at"), "ended_at": time.time()}


def source(request):
    """The action's code, from the request or from the file uploaded for it. Raises ValueError for other code."""
    code = request.get("code")
    if code is None:
        with open(request["code_file"], encoding="utf-8", errors="surrogatepass", newline="") as file:
            code = file.read()
    if hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest() != request["digest"]:
        raise ValueError("the code does not have the digest that it was sent with")
    return code


def act(code):
    """Run the action in this interpreter, as `python -c` would. Returns (status, error)."""
    sys.argv = ["-c"]
    try:
        exec(compile(code, "<action>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    except SystemExit as error:
        if error.code not in (None, 0):
            return "raised", "SystemExit: %s" % (error.code,)
    except BaseException as error:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        return "raised", text[-4000:]
    return "ok", None


def run(op, request, handle):
    """Claim the op and act; return the recorded state when it was claimed before."""
    code = source(request)
    me = os.getpid()
    claim = {"op": op.op_id, "digest": request["digest"], "call": request["call"], "pid": me, "birth": birth(me)}
    claim["at"] = time.time()
    if request["first"]:
        op.store.put("opened", "again")  # no effect while the record of setup is there
    elif op.state()["state"] == "lost":
        return op.state()
    if not op.claim(claim):
        return op.state()

    def too_late():
        result = op.publish(outcome(claim, "timeout", "stopped after %g s" % request["timeout_s"]))
        reply(handle, {"state": "done", "claim": claim, "result": result})
        os._exit(124)

    op.began(claim)
    watchdog = threading.Timer(request["timeout_s"], too_late)
    watchdog.daemon = True
    if op.result() is not None:
        return op.state()  # this process was frozen so long that the op was settled without it
    watchdog.start()
    status, error = act(code)
    if os.getpid() != me:
        os._exit(0)  # a fork of the action came back here; the journal is its parent's
    watchdog.cancel()
    return {"state": "done", "claim": claim, "result": op.publish(outcome(claim, status, error))}


def settle(op, request):
    """Decide an op that will not report any more: stop its process if it still runs, and record `verdict`."""
    known = op.state()
    claim = known.get("claim", {})
    ours = claim.get("digest", request["digest"]) == request["digest"]
    if known["state"] not in ("running", "orphaned", "lost") or not ours:
        return known
    if known["state"] == "running" and request["kill"]:
        try:
            os.kill(claim["pid"], signal.SIGKILL)
        except ProcessLookupError:
            pass
    result = op.publish(outcome(claim, request["verdict"], request["why"]))
    return {"state": "done", "claim": claim, "result": result}


def dump(store):
    """Every op that was ever claimed here, with how often its action was begun."""
    counts, names, entries = {}, sorted(store.names()), []
    for name in names:
        if ".begun-" in name:
            op_id = json.loads(store.get(name))["op"]
            counts[op_id] = counts.get(op_id, 0) + 1
    for name in names:
        if name.endswith(".claim"):
            claim = parse(store.get(name)) or {}
            result = parse(store.get(name[:-6] + ".result")) or {}
            op_id = claim.get("op", "")
            entry = {"op": op_id, "digest": claim.get("digest", ""), "executions": counts.pop(op_id, 0)}
            entry.update(status=result.get("status", "claimed"), error=result.get("error"), at=claim.get("at") or 0)
            entries.append(entry)
    entries += [{"op": op, "digest": "", "executions": n, "status": "unclaimed", "at": 0} for op, n in counts.items()]
    return {"state": "dump", "entries": sorted(entries, key=lambda entry: entry["at"])}


def main(request):
    """Answer one request of the host."""
    handle = os.dup(1)  # the action may close or replace stdout
    try:
        store = open_store(request)
        if request["do"] == "dump":
            answer = dump(store)
        else:
            op = Op(store, request["op"])
            if request["do"] == "run":
                answer = run(op, request, handle)
            elif request["do"] == "settle":
                answer = settle(op, request)
            else:
                answer = op.state()
            claimed = answer.get("claim", {}).get("digest", request["digest"])
            if claimed != request["digest"]:
                answer = {"state": "conflict", "claimed": claimed}
    except Exception as error:
        answer = {"state": "failed", "error": "%s: %s" % (type(error).__name__, error)}
    answer["op"] = request.get("op")
    reply(handle, answer)
