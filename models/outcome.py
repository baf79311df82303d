"""The end of an attempt: the facts, their classification, and its consequences. Pure functions over recorded facts.

The rules are those of docs/reference/upstream-contract.md; reasons from `sandbox_start_failed` on are Rollbook's own.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StrictBool, model_validator

from models.base import Wire


class Infra(StrEnum):
    """Infrastructure reasons: every one makes the attempt ineligible, whatever the score."""

    TIMEOUT = "timeout"  # the episode's deadline: its own work took too long
    TASK_TIMEOUT = "task_timeout"  # the far end-to-end backstop: the infrastructure did not go on
    MODEL_TIMEOUT = "model_timeout"
    ACTION_TIMEOUT = "action_timeout"
    EVALUATOR_ERROR = "evaluator_error"
    PROXY_CONFIGURATION_ERROR = "proxy_configuration_error"
    PROXY_REQUIRED_BUT_DISABLED = "proxy_required_but_disabled"
    PROXY_SETUP_ERROR = "proxy_setup_error"
    MODEL_CALL_FAILED = "model_call_failed"
    ROLLOUT_ERROR = "rollout_error"  # any other failure
    SANDBOX_START_FAILED = "sandbox_start_failed"
    SANDBOX_LOST = "sandbox_lost"  # the desktop died or was replaced
    DESKTOP_BROKEN = "desktop_broken"  # the same after the agent acted, and by the guest's own doing
    SETUP_FAILED = "setup_failed"
    SETUP_INTERRUPTED = "setup_interrupted"  # setup began once and its result is unknown
    EVALUATION_INTERRUPTED = "evaluation_interrupted"  # postconfig began once and its result is unknown
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  # another attempt was claimed while this one was open
    RECONCILED = "reconciled"  # the workflow of the attempt is gone


INCOMPLETE = ("evaluation_incomplete", "rollout_state_incomplete")
"""Reasons where no fact proves that the attempt is complete; never eligible."""

POLICY_STOPS = (
    "model_response_unparseable",
    "model_output_truncated",
    "model_response_empty",
    "model_response_invalid",
    "model_context_overflow",
)
"""Endings by the model's own output: evaluated and eligible."""

ELIGIBLE = ("agent_done", "agent_fail", "environment_done", "max_steps", *POLICY_STOPS)
"""Termination reasons of eligible attempts."""

PRECEDENCE = (
    # an ending that makes every later fact of the attempt unobservable comes first
    Infra.SUPERSEDED,
    Infra.RECONCILED,
    Infra.CANCELLED,
    # before what may earn another attempt: who wrecks the desktop must not choose the name of the ending
    Infra.DESKTOP_BROKEN,
    Infra.TIMEOUT,
    Infra.MODEL_TIMEOUT,
    Infra.ACTION_TIMEOUT,
    Infra.SANDBOX_START_FAILED,
    Infra.SANDBOX_LOST,
    Infra.SETUP_INTERRUPTED,
    Infra.SETUP_FAILED,
    Infra.EVALUATION_INTERRUPTED,
    Infra.EVALUATOR_ERROR,
    Infra.PROXY_SETUP_ERROR,
    Infra.PROXY_CONFIGURATION_ERROR,
    Infra.PROXY_REQUIRED_BUT_DISABLED,
    Infra.MODEL_CALL_FAILED,
    Infra.TASK_TIMEOUT,
    Infra.ROLLOUT_ERROR,
)
"""Order of the reasons: the first of them names the ending when several things failed."""

RETRYABLE = frozenset(
    {
        Infra.SANDBOX_START_FAILED,
        Infra.SANDBOX_LOST,
        Infra.SETUP_INTERRUPTED,
        Infra.EVALUATION_INTERRUPTED,
        Infra.MODEL_CALL_FAILED,
        Infra.TASK_TIMEOUT,
        Infra.RECONCILED,
    }
)
"""Endings that earn a new attempt while the budget lasts."""

BACKSTOP_S = 6 * 3600.0


def backstop_after(deadline_s: float) -> float:
    """Seconds from the desktop's start after which an attempt is given up: far beyond what its work can take."""
    return max(BACKSTOP_S, 10 * deadline_s)


TerminalAction = Literal["DONE", "FAIL"]
NonBlank = Annotated[str, Field(min_length=1, pattern=r"\S")]


class OutcomeFacts(Wire):
    """Facts about the end of an attempt; by default nothing is proven, so it is not eligible."""

    evaluation_completed: StrictBool = False
    infrastructure_failure_reason: Infra | None = None
    terminal_action: TerminalAction | None = None
    environment_done: StrictBool = False
    horizon_reached: StrictBool = False
    policy_stop_reason: NonBlank | None = None

    @model_validator(mode="after")
    def _exclusive(self) -> "OutcomeFacts":
        ended = self.terminal_action is not None or self.environment_done
        if self.horizon_reached and (ended or self.policy_stop_reason):
            raise ValueError("horizon_reached excludes terminal_action, environment_done and policy_stop_reason")
        if self.policy_stop_reason and ended:
            raise ValueError("policy_stop_reason excludes terminal_action and environment_done")
        if self.policy_stop_reason and self.policy_stop_reason not in POLICY_STOPS:
            raise ValueError(f"policy_stop_reason must be one of {', '.join(POLICY_STOPS)}")
        return self


VALID = "valid_evaluated_outcome"
"""Runtime admission reason of every eligible attempt."""


class Classification(Wire):
    """Termination, eligibility and the reason for it."""

    termination_reason: NonBlank
    runtime_eligible: StrictBool
    runtime_admission_reason: NonBlank
    horizon_reached: StrictBool

    @model_validator(mode="after")
    def _invariant(self) -> "Classification":
        if self.termination_reason == "max_steps" and not self.horizon_reached:
            raise ValueError("max_steps implies horizon_reached")
        if self.runtime_eligible != (self.runtime_admission_reason == VALID):
            raise ValueError(f"runtime_eligible and the reason {VALID} imply each other")
        if self.runtime_eligible and self.termination_reason not in ELIGIBLE:
            raise ValueError(f"an attempt that ended with {self.termination_reason} cannot be eligible")
        return self


def classify(facts: OutcomeFacts) -> Classification:
    """Classify the facts; the first rule that matches decides."""
    if reason := facts.infrastructure_failure_reason:
        return _ineligible(reason.value, facts.horizon_reached)
    if not facts.evaluation_completed:
        return _ineligible("evaluation_incomplete", facts.horizon_reached)
    if facts.policy_stop_reason:
        return _eligible(facts.policy_stop_reason)
    if facts.terminal_action:
        return _eligible("agent_done" if facts.terminal_action == "DONE" else "agent_fail")
    if facts.environment_done:
        return _eligible("environment_done")
    if facts.horizon_reached:
        return _eligible("max_steps", horizon_reached=True)
    return _ineligible("rollout_state_incomplete", False)


def _eligible(termination: str, horizon_reached: bool = False) -> Classification:
    return Classification(
        termination_reason=termination,
        runtime_eligible=True,
        runtime_admission_reason=VALID,
        horizon_reached=horizon_reached,
    )


def _ineligible(reason: str, horizon_reached: bool) -> Classification:
    return Classification(
        termination_reason=reason,
        runtime_eligible=False,
        runtime_admission_reason=reason,
        horizon_reached=horizon_reached,
    )


def first_reason(reasons: list[Infra]) -> Infra | None:
    """The reason that names the ending when several were met; None without any."""
    return min(reasons, key=PRECEDENCE.index) if reasons else None


CauseKind = Literal["host", "guest", "unknown"]


class Cause(Wire):
    """The reason why a desktop does not work, from its provider's own evidence."""

    kind: CauseKind = "unknown"
    """`host`: engine or host failed, or a client of the engine ended the desktop; `guest`: the guest ended or broke
    itself; `unknown`: nothing proves either."""
    detail: str = ""


def name_breakage(reasons: list[Infra], *, acted: bool, cause: Cause | None, tampered: bool) -> list[Infra]:
    """The reasons of an attempt, with `desktop_broken` added or taken back.

    Args:
        acted: An action of the agent may have run. A guest that fails before it fails by accident.
        cause: The provider's finding about the desktop, if it was asked.
        tampered: The guest server is not the one that the desktop started with.
    """
    if tampered and (cause is None or cause.kind != "host"):  # a host that restarts a desktop restarts its server, too
        return [*reasons, Infra.DESKTOP_BROKEN if acted else Infra.SANDBOX_LOST]
    if not acted:
        return [Infra.SANDBOX_LOST if reason is Infra.DESKTOP_BROKEN else reason for reason in reasons]
    if reasons and cause is not None and cause.kind == "guest":
        return [*reasons, Infra.DESKTOP_BROKEN]
    return reasons


OnDesktopBroken = Literal["mask", "zero_reward", "retry"]
"""Worth of an attempt that ended as `desktop_broken`: none; reward 0 in training; or another attempt."""


def earns_new_attempt(
    reason: Infra | None,
    *,
    guest_failed: bool,
    same_before: int,
    attempts: int,
    budget: int,
    on_desktop_broken: OnDesktopBroken = "mask",
    refused: bool = False,
) -> bool:
    """Return True when an ending earns a new attempt.

    Args:
        guest_failed: An exchange with the guest failed during evaluation.
        same_before: Earlier attempts since the last rerun request that ended with the same reason.
        attempts: Attempts since the last rerun request, this one included.
        budget: Allowed attempts, at least 1.
        on_desktop_broken: As the contract says.
        refused: The model server refuses what another attempt would send again.
    """
    if reason is None or attempts >= budget or (refused and reason is Infra.MODEL_CALL_FAILED):
        return False
    if reason is Infra.DESKTOP_BROKEN:
        # with another attempt a policy could throw the dice again by wrecking its desktop
        return on_desktop_broken == "retry"
    if reason is Infra.EVALUATOR_ERROR:
        # an error of the evaluator itself would come again; a failed exchange may be gone with a fresh desktop
        return guest_failed
    if reason is Infra.SETUP_FAILED:
        # a setup that fails twice in the same way is the task's fault
        return same_before == 0
    return reason in RETRYABLE


RewardMode = Literal["binary", "raw"]


def reward_of(score: float | None, mode: RewardMode) -> float | None:
    """The reward of a score in 0..1; None, never 0, where nothing was evaluated."""
    if score is None or mode == "raw":
        return score
    return 1.0 if score >= 1.0 else 0.0
