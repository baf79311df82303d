"""The interface between activities and a desktop of any provider."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from models.contract import Contract
from models.evidence import ArtifactRef
from models.outcome import Infra, TerminalAction
from rollbook.desktop.journal import ActionResult
from rollbook.desktop.observe import RawObservation

Note = Callable[[str], None]
"""Called during long work with a short note about progress; activities heartbeat it."""

Files = dict[str, ArtifactRef]
"""Files that a phase left for the evaluator in OSWorld's cache, by name."""

Keep = Callable[[dict[str, bytes]], Awaitable[Files]]
"""Puts such files where every worker can read them."""


@dataclass(frozen=True)
class PhaseReport:
    """A run of OSWorld's code against the desktop, whatever came of it: evidence, kept for people."""

    phase: Literal["setup", "postconfig", "evaluation"]
    ok: bool
    guest_failed: bool
    detail: str
    exchanges: dict[str, Any]
    """`by_port` counts per outcome, `failures` as objects, newest last."""
    log: bytes
    started_at: datetime
    duration_s: float
    screenshot: bytes | None = None
    """The screen after it, where one was taken."""


@dataclass(frozen=True)
class Job:
    """The task on the desktop."""

    task: dict[str, Any]
    """The OSWorld document."""
    contract: Contract
    work_dir: Path
    """Private directory of this try on this host: the evaluator's cache."""
    timeout_s: float
    token: str
    """Names this try of the phase."""
    first_try: bool = False
    """True when no other try of the phase can have begun before."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files that earlier phases left in OSWorld's cache."""
    reports: list[PhaseReport] = field(default_factory=list)
    """Filled by the driver: one for each run of OSWorld's code."""


@dataclass(frozen=True)
class Scored:
    """The evaluator's result, or the reason why there is none."""

    score: float | None
    """As the evaluator returned it, in 0..1; None unless it completed."""
    score_type: str = ""
    reason: Infra | None = None
    guest_failed: bool = False
    """True when an exchange with the guest failed, so that a fresh desktop may help."""
    detail: str = ""
    """The error; of a score, the checks behind it."""
    evaluator_revision: str = ""
    numpy: str = ""
    isolation: str = ""
    exchanges: dict[str, Any] = field(default_factory=dict)
    log: bytes = b""
    duration_s: float = 0.0


class Driver(Protocol):
    """One attempt's desktop."""

    async def prepare(self, job: Job, note: Note, keep: Keep) -> Files:
        """Run the task's setup once, after a look at what the action runtime needs.

        Raises SetupInterrupted, SetupFailed, SandboxLost.
        """
        ...

    async def observe(self, *, screen: tuple[int, int], accessibility_tree: bool, terminal: bool) -> RawObservation:
        """Observe the screen, which must have the contract's width and height in pixels; raises SandboxLost."""
        ...

    async def perform(
        self, op_id: str, action: str, *, runtime: str, timeout_s: float, first_try: bool = False
    ) -> ActionResult:
        """Run one action at most once; raises SandboxLost. `first_try`: no earlier try can have sent it."""
        ...

    async def postconfig(self, job: Job, note: Note, keep: Keep) -> Files:
        """Run the evaluator's postconfig once. The desktop's record of an earlier try is not trusted: the agent could
        have written it.

        Raises EvaluationInterrupted, EvaluatorError, SandboxLost.
        """
        ...

    async def evaluate(self, job: Job, terminal_action: TerminalAction | None, note: Note) -> Scored:
        """Score the desktop. Failures are results, so that they can be recorded; may be repeated."""
        ...

    async def close(self) -> None:
        """Release connections; the desktop stays."""
        ...
