"""The seam between the runner and whatever decides: facts in, facts out.

A policy reports what was said and whether it parsed. It never invents DONE or FAIL, never masks, and knows nothing of
step limits, deadlines or scores (upstream contract §1.1). Each of its calls is committed through the `CallLog` it is
given before the next one is made, so that a crash costs no answer and adds none.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from models.episode import Observation
from models.outcome import TerminalAction
from rollbook.ledger.records import AttemptContext, StoredCall

WAIT = "WAIT"
TERMINAL: dict[str, TerminalAction] = {"DONE": "DONE", "FAIL": "FAIL"}


@dataclass(frozen=True)
class Turn:
    """What a policy is asked about."""

    step: int
    """From 1."""
    context: AttemptContext
    observation: Observation
    read_artifact: Callable[[str], Awaitable[bytes]]
    """Bytes of an artifact by digest, for instance the screenshot's."""
    time_left: Callable[[], float] = lambda: math.inf
    """Seconds until the caller stops waiting: no call may begin that could outlast it."""

    @property
    def instruction(self) -> str:
        """What the task asks for."""
        return str(self.context.task["instruction"])


@dataclass(frozen=True)
class Answer:
    """One call of a policy: what it said, and what is kept of it as evidence."""

    actions: list[str] = field(default_factory=list)
    """pyautogui code or WAIT, in order; never DONE or FAIL."""
    terminal_action: TerminalAction | None = None
    policy_stop_reason: str | None = None
    """An ending of the closed vocabulary by the model's own output, for instance `model_response_unparseable`."""
    response: bytes | None = None
    """The raw answer, kept as evidence."""
    response_media_type: str = "application/json"
    model_name: str = ""
    completed: bool = True
    """A reply arrived."""
    parse_error: str | None = None
    failure_kind: str | None = None
    """Kind of a model failure (upstream contract §1.6), or model_timeout."""
    finish_reason: str | None = None
    prompt: bytes | None = None
    """The request as sent, images as references."""
    image: bytes | None = None
    """The current screen as sent, PNG."""
    tokens: bytes | None = None
    model_version: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_s: float | None = None
    telemetry: dict[str, Any] | None = None
    said: dict[str, Any] | None = None

    @property
    def accepted(self) -> bool:
        """It parsed and is acted upon."""
        return self.completed and self.failure_kind is None and self.policy_stop_reason is None


class CallLog(Protocol):
    """The calls of one attempt, as the ledger holds them."""

    async def until_now(self) -> list[StoredCall]:
        """Every committed call up to and including this step, in order."""
        ...

    async def commit(self, answer: Answer, parse_attempt: int = 1) -> StoredCall:
        """Commit a call of this step; the call that was committed first under this number is what counts."""
        ...


class Policy(Protocol):
    """Decides one step."""

    async def decide(self, turn: Turn, log: CallLog) -> StoredCall:
        """The committed call that decides this step; raises ModelCallFailed or ModelTimeout when there is none.

        The caller has made sure that no call decides the step yet; others of the step may be in the log.
        """
        ...


def split_terminal(actions: list[str]) -> tuple[list[str], TerminalAction | None]:
    """Actions up to the first DONE or FAIL, and which of them it was; what follows it is never run."""
    for position, action in enumerate(actions):
        if terminal := TERMINAL.get(action.strip()):
            return actions[:position], terminal
    return actions, None


def summary_of(answer: Answer) -> str:
    """One short line for people, for instance `click(412, 88)`."""
    if answer.policy_stop_reason or answer.failure_kind:
        return answer.policy_stop_reason or answer.failure_kind or ""
    words = [" ".join(action.split()).replace("pyautogui.", "") for action in answer.actions]
    if answer.terminal_action:
        words.append(answer.terminal_action)
    line = "; ".join(words)
    return (line if len(line) <= 80 else line[:79] + "…") or "no action"
