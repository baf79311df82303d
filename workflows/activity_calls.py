"""The activity calls of an episode: names, queues, timeouts and retries in one place (temporal-notes §5.3)."""

from datetime import timedelta
from typing import Any, TypeVar, cast

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TemporalTimeout

from models import names
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
    Finalized,
    FinalizeRequest,
    Observation,
    PhaseDone,
)
from models.evidence import ArtifactRef
from models.identity import phase_name, step_name
from models.outcome import Infra

T = TypeVar("T")

Files = dict[str, ArtifactRef]

_DONE = cast("type[PhaseDone | None]", PhaseDone | None)
"""Null: what workers answered before files were carried."""

LEDGER_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=2, maximum_interval=timedelta(seconds=15)
)
"""The ledger may be away for a while: wait for it."""

DESKTOP_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(seconds=30)
)

GUEST_ACTION_S = 120
"""The guest server ends an action after so many seconds by itself."""

DECIDE_ALLOWANCE_S = 1200
"""Added to the time of a step's calls: pauses between them, the wait for a free connection, a ledger that is away when
the answer is there. `decide` begins no call that could outlast its time; another try goes on from the rows."""

OBSERVE_S = 300
"""A stopped application can hang the accessibility tree for two tries of a minute each; then come the terminal and the
screenshots, and the refusal is recorded."""

PATIENCE = timedelta(hours=6)
"""How long an activity may be retried in all when its host, not its work, is the trouble."""


class Failure(Exception):
    """An activity failed for an infrastructure reason."""

    def __init__(self, reason: Infra, detail: str, guest_failed: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.guest_failed = guest_failed


class Superseded(Exception):
    """The ledger or the guest knows a newer attempt: this run has nothing more to say."""


def translate(error: ActivityError, default: Infra) -> Exception:
    """What an activity's error means for the episode; `default` names a timeout or an unforeseen error.

    Raises a cancelled activity's error as it is: `raise … from` itself would hide from Temporal that it is a cancel.
    """
    cause = error.cause
    if is_cancelled_exception(error):
        raise error
    if isinstance(cause, ApplicationError):
        if cause.type == names.FENCED:
            return Superseded(cause.message)
        if cause.type in {reason.value for reason in Infra}:
            return Failure(Infra(cause.type), cause.message, names.GUEST_FAILED in cause.details)
        return Failure(default, f"{cause.type}: {cause.message}")
    if isinstance(cause, TemporalTimeout):
        return Failure(default, f"{error.activity_type}: {cause.message}")
    return Failure(default, f"{error.activity_type}: {cause or error}")


class EpisodeActivities:
    """Activity calls of one attempt. Activity ids such as `a1-s017-act` let people pause or complete them by name."""

    def __init__(self, attempt: AttemptRef, plan: EpisodePlan) -> None:
        self._attempt = attempt
        self._plan = plan

    async def start_sandbox(self) -> DesktopRef:
        return await self._desktop(
            names.START_SANDBOX,
            self._attempt,
            DesktopRef,
            self._plan.start_timeout_s,
            Infra.SANDBOX_START_FAILED,
            hours=48,
        )

    async def stop_sandbox(self) -> None:
        await self._desktop(names.STOP_SANDBOX, self._attempt, type(None), 300, Infra.ROLLOUT_ERROR, hours=1)

    async def renew_lease(self, number: int) -> None:
        await self._call(
            names.RENEW_LEASE, self._id(f"renew-{number}"), self._attempt, type(None), 30, Infra.ROLLOUT_ERROR
        )

    async def prepare_task(self, desktop: DesktopRef) -> Files:
        call = DesktopRequest(attempt=self._attempt, desktop=desktop)
        seconds = self._plan.setup_timeout_s + 120
        return _files(await self._osworld(names.PREPARE_TASK, call, _DONE, seconds, Infra.SETUP_INTERRUPTED))

    async def observe(self, desktop: DesktopRef) -> Observation:
        call = DesktopRequest(attempt=self._attempt, desktop=desktop)
        return await self._desktop(names.OBSERVE, call, Observation, OBSERVE_S, Infra.SANDBOX_LOST)

    async def decide(self, step: int, observation: Observation) -> Decision:
        request = DecideRequest(attempt=self._attempt, step=step, observation=observation)
        seconds = self._plan.model_timeout_s + DECIDE_ALLOWANCE_S
        return await self._call(
            names.DECIDE,
            step_name(self._attempt.attempt_index, step, "decide"),
            request,
            Decision,
            seconds,
            Infra.MODEL_CALL_FAILED,
            heartbeat=True,
            hours=max(PATIENCE.total_seconds(), 2 * seconds) / 3600,
            summary=f"s{step:03d} decide",
        )

    async def act(self, step: int, desktop: DesktopRef, decision: Decision) -> Acted:
        each = max(GUEST_ACTION_S, self._plan.action_timeout_s) + 2 * self._plan.settle_s
        return await self._call(
            names.ACT,
            step_name(self._attempt.attempt_index, step, "act"),
            ActRequest(attempt=self._attempt, desktop=desktop, step=step),
            Acted,
            decision.action_count * each + OBSERVE_S,
            Infra.ACTION_TIMEOUT,
            heartbeat=True,
            queue=self._plan.desktop_queue,
            summary=f"s{step:03d} {decision.summary}",
        )

    async def run_postconfig(self, desktop: DesktopRef) -> Files:
        call = DesktopRequest(attempt=self._attempt, desktop=desktop)
        seconds = self._plan.evaluate_timeout_s + 120
        return _files(await self._osworld(names.RUN_POSTCONFIG, call, _DONE, seconds, Infra.EVALUATION_INTERRUPTED))

    async def evaluate(self, request: EvaluateRequest) -> Evaluated:
        seconds = self._plan.evaluate_timeout_s + 120
        return await self._osworld(names.EVALUATE, request, Evaluated, seconds, Infra.EVALUATOR_ERROR)

    async def finalize(self, request: FinalizeRequest) -> Finalized:
        return await self._call(
            names.FINALIZE, self._id(names.FINALIZE), request, Finalized, 60, Infra.ROLLOUT_ERROR, hours=24
        )

    def _id(self, verb: str) -> str:
        return phase_name(self._attempt.attempt_index, verb.replace("_", "-"))

    async def _desktop(
        self, name: str, argument: Any, result: type[T], seconds: float, default: Infra, hours: float | None = None
    ) -> T:
        queue = self._plan.desktop_queue
        return await self._call(
            name, self._id(name), argument, result, seconds, default, heartbeat=True, queue=queue, hours=hours
        )

    async def _osworld(self, name: str, argument: Any, result: type[T], seconds: float, default: Infra) -> T:
        queue = self._plan.osworld_queue
        return await self._call(name, self._id(name), argument, result, seconds, default, heartbeat=True, queue=queue)

    async def _call(
        self,
        name: str,
        activity_id: str,
        argument: Any,
        result: type[T],
        seconds: float,
        default: Infra,
        *,
        heartbeat: bool = False,
        queue: str | None = None,
        hours: float | None = None,
        summary: str | None = None,
    ) -> T:
        try:
            answer: T = await workflow.execute_activity(
                name,
                argument,
                result_type=result,
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
        return answer


def _files(done: PhaseDone | None) -> Files:
    return {} if done is None else done.files


async def claim(request: ClaimRequest) -> Claimed:
    """Claim an attempt; waits for the ledger as long as it takes."""
    try:
        answer: Claimed = await workflow.execute_activity(
            names.CLAIM,
            request,
            result_type=Claimed,
            activity_id=f"claim-{request.n}",
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=LEDGER_RETRY,
            summary=f"claim {request.n}",
        )
    except ActivityError as error:
        raise translate(error, Infra.ROLLOUT_ERROR) from error
    return answer
