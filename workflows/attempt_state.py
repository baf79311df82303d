"""The facts of one attempt so far, and their display in the Temporal UI."""

from dataclasses import dataclass, field

from models.episode import AttemptRef, DesktopRef, EpisodePlan, Evaluated, Examined, FinalizeRequest, Observation
from models.evidence import ArtifactRef
from models.outcome import Infra, OutcomeFacts, TerminalAction, first_reason, name_breakage


@dataclass
class AttemptState:
    """Facts of one attempt, collected by the workflow."""

    attempt: AttemptRef
    plan: EpisodePlan
    phase: str = "claimed"
    steps: int = 0
    desktop: DesktopRef | None = None
    observation: Observation | None = None
    files: dict[str, ArtifactRef] = field(default_factory=dict)
    """Files that setup and postconfig left for the evaluator."""
    terminal_action: TerminalAction | None = None
    policy_stop_reason: str | None = None
    horizon_reached: bool = False
    reasons: list[Infra] = field(default_factory=list)
    detail: str = ""
    evaluation: Evaluated | None = None
    acted: bool = False
    """An action of the agent may have run."""
    examined: Examined | None = None
    last_action: str = ""
    finalized: bool = False
    """The attempt is finalized; its desktop is being stopped."""

    guest_failed: bool = False
    refused: bool = False
    """The model server refuses what another attempt would send again."""

    def fail(self, reason: Infra, detail: str, guest_failed: bool = False) -> None:
        """Record an infrastructure failure; the detail of the first one is kept."""
        self.reasons.append(reason)
        self.guest_failed = self.guest_failed or guest_failed
        self.detail = self.detail or detail

    @property
    def desktop_usable(self) -> bool:
        """True while the desktop can still be evaluated."""
        # after the backstop evaluation would only wait for the same infrastructure
        ended = {Infra.SANDBOX_LOST, Infra.DESKTOP_BROKEN, Infra.CANCELLED, Infra.SUPERSEDED, Infra.TASK_TIMEOUT}
        return not ended & set(self.reasons)

    @property
    def examinable(self) -> bool:
        """True when the desktop is to be looked at from outside before the attempt ends."""
        return self.desktop is not None and not {Infra.CANCELLED, Infra.SUPERSEDED} & set(self.reasons)

    def facts(self) -> OutcomeFacts:
        """The facts for classification."""
        evaluated = self.evaluation is not None and self.evaluation.completed
        seen = self.examined or Examined()
        reasons = name_breakage(self.reasons, acted=self.acted, cause=seen.cause, tampered=seen.tampered)
        return OutcomeFacts(
            evaluation_completed=evaluated,
            infrastructure_failure_reason=first_reason(reasons),
            terminal_action=self.terminal_action,
            horizon_reached=self.horizon_reached,
            policy_stop_reason=self.policy_stop_reason,
        )

    def finalize_request(self) -> FinalizeRequest:
        """The end of the attempt, for the ledger."""
        return FinalizeRequest(
            attempt=self.attempt,
            facts=self.facts(),
            steps=self.steps,
            guest_failed=self.guest_failed,
            refused=self.refused,
            detail=self._explained()[:2000],
        )

    def _explained(self) -> str:
        """The first failure, and what was found out about it."""
        if self.examined is None:
            return self.detail
        cause = self.examined.cause
        found = f"cause {cause.kind}: {cause.detail}" if cause is not None else ""
        return "; ".join(text for text in (self.detail[:1000], self.examined.detail[:500], found) if text)

    def details(self) -> str:
        """Current details in Markdown for the Temporal UI; links carry no password."""
        plan = self.plan
        lines = [
            f"**{plan.domain}** `{plan.task_id}` sample {plan.sample}, attempt {self.attempt.attempt_index}",
            "",
            *(f"> {line}" for line in plan.instruction.splitlines()),
            "",
            f"- phase: **{self.phase}**, step {self.steps} of {plan.max_steps}, policy {plan.policy}",
        ]
        if self.last_action:
            lines.append(f"- last: `{self.last_action}`")
        if self.desktop is not None and self.desktop.view_url and not self.finalized:
            lines.append(f"- [live view]({self.desktop.view_url})")
        if self.observation is not None and plan.artifact_url:
            url = f"{plan.artifact_url}/artifacts/{self.observation.screenshot.sha256}"
            lines.append(f"- [latest screenshot]({url})")
        if self.reasons:
            lines.append(f"- trouble: {', '.join(self.reasons)}: {self.detail[:300]}")
        if self.evaluation is not None and self.evaluation.completed:
            lines.append(f"- score: {self.evaluation.score}")
        return "\n".join(lines)
