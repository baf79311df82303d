"""The seam between the runner and whatever decides: facts in, facts out.

A policy reports what was said and whether it parsed. It never invents DONE or FAIL, never masks, and knows nothing of
step limits, deadlines or scores (upstream contract §1.1).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from models.episode import Observation
from models.outcome import TerminalAction

WAIT = "WAIT"
TERMINAL: dict[str, TerminalAction] = {"DONE": "DONE", "FAIL": "FAIL"}


@dataclass(frozen=True)
class Turn:
    """What a policy is asked about."""

    rollout_key: str
    attempt_index: int
    step: int
    """From 1."""
    task_id: str
    instruction: str
    contract: dict[str, Any]
    observation: Observation
    read_artifact: Callable[[str], Awaitable[bytes]]
    """Bytes of an artifact by digest, for instance the screenshot's."""


@dataclass(frozen=True)
class Answer:
    """What the policy said."""

    actions: list[str] = field(default_factory=list)
    """pyautogui code or WAIT, in order; never DONE or FAIL."""
    terminal_action: TerminalAction | None = None
    policy_stop_reason: str | None = None
    """An ending of the closed vocabulary by the model's own output, for instance `model_response_unparseable`."""
    response: bytes = b""
    """The raw answer, kept as evidence."""
    response_media_type: str = "application/json"
    model_name: str = ""


class Policy(Protocol):
    """Decides one step."""

    async def decide(self, turn: Turn) -> Answer:
        """Answer a turn; raises ModelCallFailed or ModelTimeout when no answer was to be had."""
        ...


def split_terminal(actions: list[str]) -> tuple[list[str], TerminalAction | None]:
    """Actions up to the first DONE or FAIL, and which of them it was; what follows it is never run."""
    for position, action in enumerate(actions):
        if terminal := TERMINAL.get(action.strip()):
            return actions[:position], terminal
    return actions, None


def summary_of(answer: Answer) -> str:
    """One short line for people, for instance `click(412, 88)`."""
    if answer.policy_stop_reason:
        return answer.policy_stop_reason
    words = [" ".join(action.split()).replace("pyautogui.", "") for action in answer.actions]
    if answer.terminal_action:
        words.append(answer.terminal_action)
    return "; ".join(words)[:80] or "no action"
