"""The activity calls of an episode: queues, timeouts and retries in one place."""

from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TemporalTimeout

from models import activities, names
from models.activities import Activity
from models.episode import (
    Acted,
    ActRequest,
    AttemptRef,
    Claimed,
    ClaimRequest,
    DecideRequest,
    Decision,
    DesktopRef,
    DesktopRequest,
    EpisodePlan,
    Evaluated,
    EvaluateRequest,
    Examined,
    ExamineRequest,
    Finalized,
    FinalizeRequest,
    Observation,
    Observed,
    PhaseDone,
)
from models.evidence import ArtifactRef
from models.identity import phase_name, step_name
from models.outcome import RETRYABLE, Infra

In = TypeVar("In")
Out = TypeVar("Out")

Files = dict[str, ArtifactRef]

LEDGER_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=2, maximum_interval=timedelta(seconds=15)
)
"""The ledger may be down for a while: wait for it."""

DESKTOP_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(seconds=30)
)

GUEST_ACTION_S = 120
"""The guest server itself ends an action after this many seconds."""

DECIDE_ALLOWANCE_S = 1200
"""Added to the time of a step's calls, for pauses between them, the wait for a free connection, and a ledger that is
down when the answer arrives. `decide` begins no call that could outlast its time; a retry continues from the rows."""

OBSERVE_S = 300
"""A hanging application can block the accessibility tree for two tries of a minute each, before the terminal and the
screenshot are read."""

PATIENCE = timedelta(hours=6)
"""Longest total time of an activity with all retries, when its host fails rather than its work."""


class Failure(Exception):
    """An activity failed for an infrastructure reason."""

    def __init__(self, reason: Infra, detail: str, guest_failed: bool = False, refused: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.guest_failed = guest_failed
        self.refused = refused


class Superseded(Exception):
    """The ledger or the guest knows a newer attempt: this run must end without writing."""


def translate(error: ActivityError, default: Infra) -> Exception:
    """The episode's error for an activity's error; `default` is the reason of a timeout or an unforeseen error.

    Raises the error of a cancelled activity unchanged.
    """
    cause = error.cause
    if is_cancelled_exception(error):
        raise error  # chained to another error, Temporal would not recognise the cancel
    if isinstance(cause, ApplicationError):
        if cause.type == names.FENCED:
            return Superseded(cause.message)
        if cause.type in {reason.value for reason in Infra}:
            guest_failed, refused = (flag in cause.details for flag in (names.GUEST_FAILED, names.REFUSED))
            return Failure(Infra(cause.type), cause.message, guest_failed, refused)
        return Failure(_reason_of(error, default), f"{cause.type}: {cause.message}")
    if isinstance(cause, TemporalTimeout):
        return Failure(_reason_of(error, default), f"{error.activity_type}: {cause.message}")
    return Failure(default, f"{error.activity_type}: {cause or error}")


def _reason_of(error: ActivityError, default: Infra) -> Infra:
    """The default; or, when all patience was spent on waiting and on tries that failed, a reason to try again."""
    waited = error.retry_state == RetryState.TIMEOUT
    return Infra.TASK_TIMEOUT if waited and default not in RETRYABLE else default


class EpisodeActivities:
    """Activity calls of one attempt. Activity ids such as `a1-s017-act` let people pause or complete them by name."""

    def __init__(self, attempt: AttemptRef, plan: EpisodePlan) -> None:
        self._attempt = attempt
        self._plan = plan

    async def start_sandbox(self) -> DesktopRef:
        seconds, reason = self._plan.start_timeout_s, Infra.SANDBOX_START_FAILED
        return await self._on_desktop(activities.START_SANDBOX, self._attempt, seconds, reason, hours=48)

    async def stop_sandbox(self) -> None:
        await self._on_desktop(activities.STOP_SANDBOX, self._attempt, 300, Infra.ROLLOUT_ERROR, hours=1)

    async def examine_desktop(self, desktop: DesktopRef, *, failed: bool) -> Examined:
        request = ExamineRequest(attempt=self._attempt, desktop=desktop, failed=failed)
        return await self._on_desktop(activities.EXAMINE_DESKTOP, request, 300, Infra.SANDBOX_LOST, hours=1)

    async def renew_lease(self, number: int) -> None:
        activity_id = self._id(f"renew-{number}")
        await self._call(activities.RENEW_LEASE, activity_id, self._attempt, 30, Infra.ROLLOUT_ERROR)

    async def prepare_task(self, desktop: DesktopRef) -> PhaseDone:
        request = DesktopRequest(attempt=self._attempt, desktop=desktop)
        seconds = self._plan.setup_timeout_s + 120
        return await self._with_evaluator(activities.PREPARE_TASK, request, seconds, Infra.SETUP_INTERRUPTED)

    async def observe(self, desktop: DesktopRef) -> Observed:
        request = DesktopRequest(attempt=self._attempt, desktop=desktop)
        return await self._on_desktop(activities.OBSERVE, request, OBSERVE_S, Infra.SANDBOX_LOST)

    async def decide(self, step: int, observation: Observation, budget_s: float) -> Decision:
        seconds = self._plan.model_timeout_s + DECIDE_ALLOWANCE_S
        return await self._call(
            activities.DECIDE,
            step_name(self._attempt.attempt_index, step, "decide"),
            DecideRequest(attempt=self._attempt, step=step, observation=observation, budget_s=budget_s),
            seconds,
            Infra.MODEL_CALL_FAILED,
            heartbeat=True,
            hours=max(PATIENCE.total_seconds(), 2 * seconds) / 3600,
            summary=f"s{step:03d} decide",
        )

    async def act(self, step: int, desktop: DesktopRef, decision: Decision) -> Acted:
        each = max(GUEST_ACTION_S, self._plan.action_timeout_s) + 2 * self._plan.settle_s
        return await self._call(
            activities.ACT,
            step_name(self._attempt.attempt_index, step, "act"),
            ActRequest(attempt=self._attempt, desktop=desktop, step=step),
            decision.action_count * each + OBSERVE_S,
            Infra.ACTION_TIMEOUT,
            heartbeat=True,
            queue=self._plan.desktop_queue,
            summary=f"s{step:03d} {decision.summary}",
        )

    async def run_postconfig(self, desktop: DesktopRef) -> Files:
        request = DesktopRequest(attempt=self._attempt, desktop=desktop)
        seconds = self._plan.evaluate_timeout_s + 120
        done = await self._with_evaluator(activities.RUN_POSTCONFIG, request, seconds, Infra.EVALUATION_INTERRUPTED)
        return done.files

    async def evaluate(self, request: EvaluateRequest) -> Evaluated:
        seconds = self._plan.evaluate_timeout_s + 120
        return await self._with_evaluator(activities.EVALUATE, request, seconds, Infra.EVALUATOR_ERROR)

    async def finalize(self, request: FinalizeRequest) -> Finalized:
        activity_id = self._id(names.FINALIZE)
        return await self._call(activities.FINALIZE, activity_id, request, 60, Infra.ROLLOUT_ERROR, hours=24)

    def _id(self, verb: str) -> str:
        return phase_name(self._attempt.attempt_index, verb.replace("_", "-"))

    async def _on_desktop(
        self,
        activity: Activity[In, Out],
        request: In,
        seconds: float,
        default: Infra,
        hours: float | None = None,
    ) -> Out:
        queue = self._plan.desktop_queue
        return await self._call(
            activity, self._id(activity.name), request, seconds, default, heartbeat=True, queue=queue, hours=hours
        )

    async def _with_evaluator(self, activity: Activity[In, Out], request: In, seconds: float, default: Infra) -> Out:
        queue = self._plan.osworld_queue
        return await self._call(
            activity, self._id(activity.name), request, seconds, default, heartbeat=True, queue=queue
        )

    async def _call(
        self,
        activity: Activity[In, Out],
        activity_id: str,
        request: In,
        seconds: float,
        default: Infra,
        *,
        heartbeat: bool = False,
        queue: str | None = None,
        hours: float | None = None,
        summary: str | None = None,
    ) -> Out:
        """Run an activity; `default` is the reason of a timeout or an unforeseen error. Raises Failure, Superseded."""
        try:
            answer: Any = await workflow.execute_activity(
                activity.name,
                request,
                activity_id=activity_id,
                task_queue=queue,
                start_to_close_timeout=timedelta(seconds=seconds),
                schedule_to_close_timeout=timedelta(hours=hours) if hours else PATIENCE,
                heartbeat_timeout=timedelta(seconds=self._plan.heartbeat_s) if heartbeat else None,
                retry_policy=DESKTOP_RETRY if heartbeat else LEDGER_RETRY,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=summary and summary[:100],
            )
        except ActivityError as error:
            raise translate(error, default) from error
        return _decoded(activity, answer, default)


def _decoded(activity: Activity[In, Out], answer: Any, default: Infra) -> Out:
    """Read the result of an activity. Raises Failure."""
    try:
        return activity.read(answer)
    except ValueError as error:
        raise Failure(default, str(error)) from error


async def claim(request: ClaimRequest) -> Claimed:
    """Claim an attempt; waits for the ledger as long as it takes."""
    try:
        answer: Any = await workflow.execute_activity(
            activities.CLAIM.name,
            request,
            activity_id=f"claim-{request.n}",
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=LEDGER_RETRY,
            summary=f"claim {request.n}",
        )
    except ActivityError as error:
        raise translate(error, Infra.ROLLOUT_ERROR) from error
    return _decoded(activities.CLAIM, answer, Infra.ROLLOUT_ERROR)
