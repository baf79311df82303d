"""Results of a phase of setup or evaluation, and the rules that derive them from facts."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollbook.guest.exchanges import ANSWERED, Exchange, ExchangeLog, Outcome
from rollbook.guest.http import GUEST_PORT

Phase = Literal["prepare", "postconfig", "evaluate"]
Status = Literal["ok", "failed", "timeout"]

CLOSED_APPLICATION = frozenset({Outcome.REFUSED, Outcome.RESET})
"""Ends of an exchange with Chromium or VLC whose application is closed: nothing listens, or what passes the port
on (Docker's proxy) takes the connection and drops it. After other failures the application's state is unknown."""


BROKEN_BY_GUEST = frozenset({"GuestBroken", "CommandKilled", "MemoryLimit", "PhaseTimeout"})
"""Errors of postconfig and evaluation by what the guest supplied: it cannot do what each sound guest can, or it
exhausted a limit."""


@dataclass(frozen=True, slots=True)
class ChildRun:
    """The end of the evaluator's process."""

    ended: Literal["exited", "timeout", "aborted", "memory"]
    """`aborted`: stopped by us because the guest failed, when no result could count any more; `memory`: stopped
    because it held too much."""
    exit_code: int | None
    """Negative: the signal that ended it."""
    answer: dict[str, Any] | None
    """The JSON that it wrote; None when it left none or an unreadable one."""


@dataclass(frozen=True, slots=True)
class GuestCheck:
    """The guest's identity before and right after the phase."""

    expected: str | None
    after: str | None
    """None: it did not answer."""
    error: str = ""

    @property
    def same(self) -> bool:
        """True when the same guest still answers."""
        return self.after is not None and self.after == self.expected


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion from the facts."""

    status: Status
    value: float | int | bool | None = None
    error_type: str = ""
    error_message: str = ""
    guest_failed: bool = False


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """A phase that was run, whatever came of it."""

    phase: Phase
    status: Status
    value: float | int | bool | None
    """Score as the evaluator returned it (`evaluate`; a bool as 0 or 1), True (setup); None unless status is ok."""
    checks: str
    """The checks behind a score in words: metrics, compared values, results. Guest-made text is in it."""
    score_type: str | None
    """Python type of the score: int, float, bool, float64, …"""
    error_type: str
    """The evaluator's exception class, or a name of Rollbook's: see docs/reference/evaluator.md. Empty when ok."""
    error_message: str
    traceback: str
    guest_failed: bool
    """The guest, not the evaluator or the task, is why there is no result: a new attempt may help."""
    guest_alive_after: bool | None
    """True when the same guest answered right after the phase."""
    nonce: str | None
    """Boot identity of the guest."""
    exchanges: dict[int, dict[str, int]]
    """`{guest port: {outcome: count}}`."""
    failures: tuple[Exchange, ...]
    """The newest exchanges that were not `ok`, oldest first."""
    log_path: Path
    """The evaluator's output and log."""
    exchange_log_path: Path
    """All exchanges, one JSON object a line."""
    duration_s: float
    isolation: Literal["bwrap", "none"]
    isolation_reason: str
    """The reason why there is no isolation; empty under bwrap."""
    evaluator_revision: str
    numpy: str
    downloads: tuple[str, ...] = field(default=())
    """URLs that were fetched for the phase because their files were not in the cache directory."""


def interpret_results(phase: Phase, run: ChildRun, log: ExchangeLog, guest: GuestCheck) -> Verdict:
    """Derive the verdict of a phase. Failures of the guest come first: after one, no other fact counts."""
    if verdict := _guest_verdict(phase, run, log, guest):
        return verdict
    if killed := _killed_commands(phase, log):
        return Verdict("failed", error_type="CommandKilled", error_message=killed)
    if phase == "prepare" and log.absent:
        # Later the agent may have removed it, and nothing is to be gained by that: there it is a fact, and scored.
        names = ", ".join(dict.fromkeys(repr(exchange.absent) for exchange in log.absent))
        return Verdict("failed", error_type="NoSuchProgram", error_message=f"the desktop has no {names}")
    if run.ended == "timeout":
        return Verdict("timeout", error_type="PhaseTimeout", error_message=f"{phase} did not finish in time")
    if run.ended == "memory":
        return Verdict("failed", error_type="MemoryLimit", error_message="the evaluator's process took too much memory")
    if run.answer is None:
        return Verdict("failed", error_type="EvaluatorDied", error_message=_how_it_died(run.exit_code))
    if run.answer.get("completed") is not True:
        return Verdict(
            "failed",
            error_type=str(run.answer.get("error_type") or "EvaluatorDied"),
            error_message=str(run.answer.get("error_message") or "no message"),
        )
    return _score_verdict(run.answer) if phase == "evaluate" else _setup_verdict(run.answer)


def _guest_verdict(phase: Phase, run: ChildRun, log: ExchangeLog, guest: GuestCheck) -> Verdict | None:
    status: Status = "timeout" if run.ended == "timeout" else "failed"
    if guest.after is None:
        return Verdict(status, None, "GuestLost", f"the guest does not answer: {guest.error}", guest_failed=True)
    if not guest.same:
        message = f"another guest answers: {guest.after} instead of {guest.expected}"
        return Verdict(status, None, "GuestReplaced", message, guest_failed=True)
    if log.broken and phase != "prepare":
        # it answers, and cannot even read a known file or run `true`: that comes from inside
        return Verdict(status, None, "GuestBroken", _words_of("failed, and so did their controls", log.broken))
    undelivered = log.undelivered[GUEST_PORT]
    if run.answer is None:  # the evaluator ended in the middle of what it asked: that is not the guest's doing
        undelivered -= log.count(GUEST_PORT, Outcome.ABANDONED)
    if undelivered:
        return Verdict(status, None, "GuestExchangeFailed", _failed_exchanges(log), guest_failed=True)
    if phase == "evaluate" and log.unexplained[GUEST_PORT]:
        # In setup a 500 is the stock guest's way to say that a command or file does not exist. Here metrics take
        # what is missing for a 0: so it must be known that nothing else failed.
        return Verdict(status, None, "GuestExchangeFailed", _failed_exchanges(log), guest_failed=True)
    if phase == "evaluate" and _inconclusive_exchanges(log, died=run.answer is None):
        return Verdict(status, None, "GuestExchangeFailed", _failed_exchanges(log), guest_failed=True)
    return None


def _killed_commands(phase: Phase, log: ExchangeLog) -> str:
    """Commands that were killed, in words; OSWorld's code takes them for done, and what they printed for an answer.

    In setup and postconfig every kill counts. In evaluation a command at its limit is a fact about what the agent left,
    but a desktop without memory shows nothing of it. The desktop is broken then, see `BROKEN_BY_GUEST`.
    """
    killed = [one for one in log.killed if phase != "evaluate" or one.killed != "at its limit"]
    lines = [f"{one.method} {one.path}: the command was killed {one.killed}" for one in killed]
    return f"{len(lines)} command(s) did not come to an end: {'; '.join(lines[:5])}" if lines else ""


def _inconclusive_exchanges(log: ExchangeLog, died: bool) -> int:
    """Count exchanges with Chromium and VLC without evidence of their state: a hanging desktop looks the same."""
    conclusive = ANSWERED | CLOSED_APPLICATION | ({Outcome.ABANDONED} if died else set())
    return sum(n for (port, outcome), n in log.counts.items() if port != GUEST_PORT and outcome not in conclusive)


def _setup_verdict(answer: dict[str, Any]) -> Verdict:
    if answer.get("value") is True:
        return Verdict("ok", True)
    return Verdict("failed", None, "SetupReturnedFalse", "setup() returned False: it could not reach GET /terminal")


def _score_verdict(answer: dict[str, Any]) -> Verdict:
    value = answer.get("value")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:  # NaN is not, either
        text = f"{answer.get('score_type')} {answer.get('score_text')}"
        return Verdict("failed", None, "InvalidScore", f"the evaluator returned {text}, not a number from 0 to 1")
    return Verdict("ok", value)


def _failed_exchanges(log: ExchangeLog) -> str:
    bad = [e for e in log.failures if _is_failed(e)]
    return _words_of("with the guest failed", bad)


def _words_of(problem: str, exchanges: Iterable[Exchange]) -> str:
    lines = [
        f"{e.method} {e.path} on port {e.port}: {e.outcome}{f' {e.status}' if e.status else ''} {e.detail}".strip()
        for e in exchanges
    ]
    return f"{len(lines)} exchange(s) {problem}: " + "; ".join(lines[:5])


def _is_failed(exchange: Exchange) -> bool:
    if exchange.port == GUEST_PORT:
        return exchange.delivery_failed or (exchange.outcome is Outcome.HTTP_5XX and exchange.control != "passed")
    return not exchange.answered and exchange.outcome not in CLOSED_APPLICATION


def _how_it_died(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"the evaluator's process was ended by signal {-exit_code} and left no result"
    return f"the evaluator's process ended with exit code {exit_code} and left no result"
