"""Actions that happen at most once: the host's side of the journal inside the guest.

Every action is shipped together with the journal's own code (`inside/journal.py`) through the stock `/execute`, so any
OSWorld guest works. See docs/explanation/action-journal.md for what this proves and what it cannot.
"""

import asyncio
import hashlib
import math
import time
import uuid
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rollbook.desktop.client import ExecuteResult, GuestClient, GuestRefused, GuestReplaced
from rollbook.desktop.inside import guest_program
from rollbook.desktop.runtimes import ActionRuntime
from rollbook.errors import ActionFailed, ActionTooLong, SandboxLost
from rollbook.guest.http import parse_guest_json
from rollbook.redaction import redact_head, redact_tail

Status = Literal["ok", "raised", "timeout", "in_doubt", "refused"]

CODE_FILES = "/var/tmp/.rollbook-action"
"""Beginning of the path of a long action's code in the guest."""

GUEST_LIMIT_S = 120.0
"""The guest server kills a command after this long."""
GUEST_MARGIN_S = 2.0
"""An action is stopped this long before the guest server would kill it: then its end is recorded, and known to every
later delivery too."""

MAX_ARGUMENT_BYTES = 100_000
"""Linux takes 128 KiB per argument; longer code travels as a file."""

MAX_CODE_BYTES = 8 * 1024 * 1024

MARK = "@@rollbook-journal@@ "

_SOUND = frozenset({"absent", "running", "orphaned", "lost", "done", "conflict", "unknown"})
"""States that the journal, and the host about its silence, can report; any other is trouble."""


@dataclass(frozen=True)
class ActionResult:
    """The end of one action, as the guest recorded it."""

    op_id: str
    status: Status
    """`ok` | `raised` (the code ran and raised: a fact about the action, not a failure) | `timeout` (stopped by a
    deadline) | `in_doubt` (begun, end unknown; never begun again) | `refused` (not run: another code has this id)."""
    error: str | None
    repeated: bool
    """An earlier call had delivered the action already; this one only read its result."""
    started_at: float | None
    """Guest's clock, seconds since the epoch."""
    duration_s: float | None


@dataclass(frozen=True)
class JournalEntry:
    """One op of the journal, for audits and tests."""

    op_id: str
    digest: str
    """SHA-256 of the code that was claimed."""
    executions: int
    """Number of times the action was really begun: 1, or 0 when its process died between claim and start."""
    status: str
    """As `ActionResult.status`, or `claimed` while no result is recorded."""
    error: str | None


@dataclass(frozen=True)
class Patience:
    """Limits of waiting for an answer. All in seconds."""

    silence_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Pauses after consecutive unanswered requests; one more unanswered and the desktop is lost."""
    poll_s: float = 0.2
    orphan_s: float = 1.0
    """Time for which a claim without a living process is watched before it is settled."""
    grace_s: float = 15.0
    """Added to the action's own time before the host stops it."""
    deliveries: int = 3
    """Number of times that an action which never arrived is sent."""
    troubles: int = 4
    """Number of answers in a row that may be unusable (no Python in the guest, a full disk) before the action fails."""
    probe_timeout_s: float = 15.0


class _Operation:
    """One op on its way to the guest: the three requests about it, each sent once."""

    def __init__(self, client: GuestClient, op_id: str, code: str, interpreter: str, timeout_s: float) -> None:
        self._raw = code.encode("utf-8", "surrogatepass")
        if len(self._raw) > MAX_CODE_BYTES:
            raise ActionTooLong(
                f"action {op_id}: {len(self._raw)} bytes of code; at most {MAX_CODE_BYTES} are delivered"
            )
        self.op_id = op_id
        self.timeout_s = timeout_s
        self.call_id = uuid.uuid4().hex
        self.killed_by_guest = False
        self._client = client
        self._interpreter = interpreter
        self._digest = hashlib.sha256(self._raw).hexdigest()
        self._source = {"code": code}

    async def deliver(self, answer_timeout_s: float, *, first: bool) -> dict[str, Any]:
        """Send the action. The claim in the guest makes a second delivery harmless."""
        await self._client.verify()
        request = {"call": self.call_id, "first": first}
        request["timeout_s"] = min(self.timeout_s, GUEST_LIMIT_S - GUEST_MARGIN_S)
        program = self._program("run", **request, **self._source)
        if len(program) > MAX_ARGUMENT_BYTES:
            path = f"{CODE_FILES}-{self._digest}.py"
            await self._client.upload(path, self._raw)
            self._source = {"code_file": path}
            program = self._program("run", **request, **self._source)
        return await self._ask(program, answer_timeout_s)

    async def probe(self, answer_timeout_s: float) -> dict[str, Any]:
        """Ask what is known; changes nothing."""
        return await self._ask(self._program("probe"), answer_timeout_s)

    async def settle(self, verdict: Status, why: str, answer_timeout_s: float) -> dict[str, Any]:
        """Stop the op's process if it still runs and record `verdict`, unless a result has just been recorded."""
        return await self._ask(self._program("settle", verdict=verdict, why=why, kill=True), answer_timeout_s)

    def _program(self, do: str, **request: Any) -> str:
        return guest_program("journal", {"do": do, "op": self.op_id, "digest": self._digest, **request})

    async def _ask(self, program: str, timeout_s: float) -> dict[str, Any]:
        result = await self._client.execute([self._interpreter, "-c", program], timeout_s=timeout_s)
        self.killed_by_guest |= result.timed_out
        answer = guest_answer(result)
        if answer is None or answer.get("op") != self.op_id:
            return {"state": "unreadable", "error": redact_tail(result.error or result.output, 500) or "no output"}
        return answer


class _Delivery:
    """Insists on one op until its end is recorded: which request comes next, and when to stop asking."""

    def __init__(self, op: _Operation, patience: Patience, first_try: bool) -> None:
        self._op = op
        self._first_try = first_try
        self._patience = patience
        self._deadline = time.monotonic() + op.timeout_s + patience.grace_s
        self._deliveries = 0
        self._silent = 0
        self._troubles = 0
        self._orphaned_at: float | None = None

    async def run(self) -> dict[str, Any]:
        """The final answer of the guest: `done` or `conflict`."""
        answer: dict[str, Any] = {"state": "absent"}
        while answer["state"] not in ("done", "conflict"):
            try:
                answer = await self._next(answer)
            except GuestReplaced:
                raise
            except SandboxLost as error:
                answer = await self._endure(error)
                continue
            except GuestRefused as error:
                answer = {"state": "failed", "error": str(error)}
            self._silent = 0
            self._keep_count(answer)
        return answer

    async def _next(self, last: dict[str, Any]) -> dict[str, Any]:
        state, patience, now = last["state"], self._patience, time.monotonic()
        if state == "absent":
            self._deliveries += 1
            if self._deliveries > patience.deliveries:
                raise ActionFailed(f"action {self._op.op_id} was sent {patience.deliveries} times and never began")
            first = self._first_try and self._deliveries == 1
            return await self._op.deliver(min(self._op.timeout_s, GUEST_LIMIT_S) + patience.grace_s, first=first)
        if state == "lost":
            why = "the desktop's record of it was removed: it may have run"
            return await self._op.settle("in_doubt", why, patience.probe_timeout_s)
        if state == "running" and now > self._deadline:
            why = f"stopped by the host after {self._op.timeout_s:g} s"
            return await self._op.settle("timeout", why, patience.probe_timeout_s)
        if state == "orphaned" and self._orphaned_at is not None and now - self._orphaned_at > patience.orphan_s:
            return await self._op.settle(*self._verdict(), patience.probe_timeout_s)
        if state != "unknown":
            await asyncio.sleep(patience.poll_s)
        return await self._op.probe(patience.probe_timeout_s)

    def _verdict(self) -> tuple[Status, str]:
        if self._op.killed_by_guest:
            return "timeout", f"stopped by the guest server after {GUEST_LIMIT_S:g} s"
        return "in_doubt", "the process of the action ended without a result"

    async def _endure(self, error: SandboxLost) -> dict[str, Any]:
        pauses = self._patience.silence_s
        if self._silent >= len(pauses):
            raise SandboxLost(f"action {self._op.op_id}: the guest stopped answering: {error}") from error
        await asyncio.sleep(pauses[self._silent])
        self._silent += 1
        return {"state": "unknown"}

    def _keep_count(self, answer: dict[str, Any]) -> None:
        if answer["state"] != "orphaned":
            self._orphaned_at = None
        elif self._orphaned_at is None:
            self._orphaned_at = time.monotonic()
        if answer["state"] in _SOUND:
            self._troubles = 0
            return
        self._troubles += 1
        if self._troubles > self._patience.troubles:
            why = answer.get("error")
            why = why if isinstance(why, str) and why else f"state {answer['state']!r:.40}"
            raise ActionFailed(f"action {self._op.op_id}: the guest cannot run the journal: {redact_tail(why, 500)}")


async def perform(
    client: GuestClient,
    *,
    op_id: str,
    action: str,
    runtime: ActionRuntime,
    timeout_s: float = GUEST_LIMIT_S,
    patience: Patience | None = None,
    first_try: bool = False,
) -> ActionResult:
    """Perform an action at most once under `op_id` and return how it ended; a repeat returns the recorded end.

    `first_try`: the action cannot have been sent before, so that it may run on a desktop whose records were removed.
    Without it such an action is `in_doubt`.

    Raises SandboxLost when the guest stops answering, ActionFailed when it answers but the action cannot be delivered.
    """
    op = _Operation(client, op_id, runtime.code(action), runtime.interpreter, timeout_s)
    answer = await _Delivery(op, patience or Patience(), first_try).run()
    if answer["state"] == "conflict":
        error = f"op_conflict: other code (sha256 {str(answer.get('claimed'))[:12]}…) was claimed under this op id"
        return ActionResult(op_id, "refused", error, True, None, None)
    try:
        return _recorded(op, answer)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as trouble:
        # the agent owns the guest and may spoil its journal: that must neither help it nor pass for an accident
        error = (
            f"the guest's journal holds no readable result ({type(trouble).__name__}: {redact_head(str(trouble), 200)})"
        )
        return ActionResult(op_id, "in_doubt", error, True, None, None)


def _recorded(op: _Operation, answer: dict[str, Any]) -> ActionResult:
    """The end of an op as the guest recorded it; raises what reading a spoilt record raises."""
    result, claim = answer["result"], answer["claim"]
    started, ended = result["started_at"], result["ended_at"]
    if result["status"] not in get_args(Status):
        raise ValueError(f"status {result['status']!r:.40}")
    return ActionResult(
        op_id=op.op_id,
        status=result["status"],
        error=None if result["error"] is None else str(result["error"]),
        repeated=claim.get("call") != op.call_id,
        started_at=None if started is None else _finite(started),
        duration_s=None if started is None else max(0.0, _finite(_finite(ended) - _finite(started))),
    )


def _finite(number: Any) -> float:
    """Return the number; the ledger cannot hold infinities and NaN. Raises ValueError, OverflowError, TypeError."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a time")
    return value


async def read_journal(client: GuestClient, interpreter: str = "python") -> list[JournalEntry]:
    """Everything that the guest's journal holds, oldest first. Raises SandboxLost, ActionFailed."""
    result = await client.execute([interpreter, "-c", guest_program("journal", {"do": "dump"})], timeout_s=30.0)
    answer = guest_answer(result)
    if answer is None or answer["state"] != "dump":
        why = redact_tail(result.error or result.output, 500)
        raise ActionFailed(f"the guest's journal cannot be read: {why}")
    try:
        return [
            JournalEntry(entry["op"], entry["digest"], entry["executions"], entry["status"], entry.get("error"))
            for entry in answer["entries"]
        ]
    except (KeyError, TypeError, AttributeError) as trouble:
        raise ActionFailed(
            f"the guest's journal cannot be read: {type(trouble).__name__}: {redact_head(str(trouble), 200)}"
        ) from trouble


def guest_answer(result: ExecuteResult) -> dict[str, Any] | None:
    """The journal's line within whatever else was printed; None when there is none. The last one counts."""
    for line in reversed(result.output.splitlines()):
        if line.startswith(MARK):
            answer = parse_guest_json(line[len(MARK) :])
            if isinstance(answer, dict) and isinstance(answer.get("state"), str):
                return answer
    return None
