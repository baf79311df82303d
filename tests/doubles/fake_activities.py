"""Every activity of Rollbook in memory, so that tests can decide what each of them answers, when, and how it fails.

They prove what the workflows do: which activity is called, in which order, with what, and what follows from its
answer. They cannot prove anything about the real activities: no transaction, no lock and no fence is behind
`claim` and `finalize`; no desktop behind `act`; nothing is idempotent, nothing blocks a heartbeat, no payload has its
real size, and a cancel reaches them within milliseconds instead of seconds. The ending rules (`classify`,
`earns_new_attempt`, `reward_of`) are the real ones.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from models import names
from models.batch import CloseBatch, Control, Counts, PumpRequest, PumpResult, RegisterBatch, RegisteredBatch
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
from models.outcome import Infra, classify, earns_new_attempt, reward_of
from workflows.batch import BenchmarkBatch
from workflows.episode import Episode

Hook = Callable[[Any], Awaitable[Any]]

SCREENSHOT = ArtifactRef(sha256="0" * 64, size_bytes=1, media_type="image/png")


class FakeActivities:
    """Answers by default like a quiet day; `on[name] = hook` takes over one activity.

    `log` holds the activities in the order in which they began, `requests` what each was asked.
    """

    def __init__(self, queue: str, **plan: Any) -> None:
        self.queue = queue
        self.on: dict[str, Hook] = {}
        self.log: list[str] = []
        self.requests: defaultdict[str, list[Any]] = defaultdict(list)
        self.activity_ids: list[str] = []
        self.plan = EpisodePlan.model_validate(
            {
                "batch_id": "b",
                "task_id": "t",
                "domain": "os",
                "sample": 0,
                "instruction": "Do it.",
                "max_steps": 5,
                "deadline_s": 600,
                "model_timeout_s": 60,
                "action_timeout_s": 60,
                "setup_timeout_s": 60,
                "evaluate_timeout_s": 60,
                "start_timeout_s": 60,
                "desktop_queue": queue,
                "osworld_queue": queue,
                **plan,
            }
        )
        self.decisions: list[Decision] = [Decision(action_count=1, summary="click"), Decision(terminal_action="DONE")]
        """Answers of the policy, step by step; the last one is repeated."""
        self.score = 1.0
        self.worked_s = 0.0
        """Seconds of work that setup, looks, decisions and actions report, each."""
        self.budget = 3
        self.registered: dict[str, Any] = {"planned": 2, "added": 2, "final": 0, "slice_s": 30, "slices_per_run": 3}
        self.pumps: list[str] = ["whole"]
        """States that the pump returns, in order; the last one is repeated."""
        self.counts = Counts(planned=2, admitted=2)
        self._scores: dict[int, float | None] = {}
        self._reasons: list[Infra | None] = []

    def count(self, name: str) -> int:
        """Number of starts of an activity."""
        return self.log.count(name)

    @property
    def outcome(self) -> FinalizeRequest:
        """The last end of an attempt that was reported to the ledger."""
        last: FinalizeRequest = self.requests[names.FINALIZE][-1]
        return last

    async def _do(self, name: str, request: Any, answer: Callable[[], Any]) -> Any:
        self.log.append(name)
        self.requests[name].append(request)
        self.activity_ids.append(activity.info().activity_id)
        hook = self.on.get(name)
        return await hook(request) if hook else answer()

    @activity.defn(name=names.CLAIM)
    async def claim(self, request: ClaimRequest) -> Claimed:
        claimed: Claimed = await self._do(names.CLAIM, request, lambda: self.claimed(request.n))
        return claimed

    def claimed(self, n: int) -> Claimed:
        """The answer to a claim that succeeds."""
        return Claimed(status="claimed", attempt_index=n, run_id=activity.info().workflow_run_id or "", plan=self.plan)

    @activity.defn(name=names.START_SANDBOX)
    async def start_sandbox(self, attempt: AttemptRef) -> DesktopRef:
        desktop: DesktopRef = await self._do(names.START_SANDBOX, attempt, lambda: self.desktop(attempt))
        return desktop

    def desktop(self, attempt: AttemptRef) -> DesktopRef:
        """A desktop for an attempt."""
        return DesktopRef(provider="fake", sandbox_id="s", sandbox_key=f"k{attempt.attempt_index}", nonce="n")

    @activity.defn(name=names.STOP_SANDBOX)
    async def stop_sandbox(self, attempt: AttemptRef) -> None:
        await self._do(names.STOP_SANDBOX, attempt, lambda: None)

    @activity.defn(name=names.EXAMINE_DESKTOP)
    async def examine_desktop(self, request: ExamineRequest) -> Examined:
        examined: Examined = await self._do(names.EXAMINE_DESKTOP, request, Examined)
        return examined

    @activity.defn(name=names.RENEW_LEASE)
    async def renew_lease(self, attempt: AttemptRef) -> None:
        await self._do(names.RENEW_LEASE, attempt, lambda: None)

    @activity.defn(name=names.PREPARE_TASK)
    async def prepare_task(self, call: DesktopRequest) -> PhaseDone:
        done: PhaseDone | None = await self._do(names.PREPARE_TASK, call, lambda: None)
        return done or PhaseDone(worked_s=self.worked_s)

    @activity.defn(name=names.OBSERVE)
    async def observe(self, call: DesktopRequest) -> Observed:
        seen: Observation = await self._do(names.OBSERVE, call, self.seen)
        return Observed(observation=seen, worked_s=self.worked_s)

    def seen(self) -> Observation:
        """The content of the screen."""
        return Observation(screenshot=SCREENSHOT)

    @activity.defn(name=names.DECIDE)
    async def decide(self, request: DecideRequest) -> Decision:
        decision: Decision = await self._do(
            names.DECIDE, request, lambda: self.decisions[min(request.step, len(self.decisions)) - 1]
        )
        return decision.model_copy(update={"worked_s": self.worked_s})

    @activity.defn(name=names.ACT)
    async def act(self, request: ActRequest) -> Acted:
        acted: Acted = await self._do(names.ACT, request, self.acted)
        return acted

    def acted(self) -> Acted:
        """An action that went well."""
        return Acted(observation=self.seen(), worked_s=self.worked_s)

    @activity.defn(name=names.RUN_POSTCONFIG)
    async def run_postconfig(self, call: DesktopRequest) -> PhaseDone:
        done: PhaseDone | None = await self._do(names.RUN_POSTCONFIG, call, PhaseDone)
        return done or PhaseDone()

    @activity.defn(name=names.EVALUATE)
    async def evaluate(self, request: EvaluateRequest) -> Evaluated:
        found: Evaluated = await self._do(names.EVALUATE, request, lambda: Evaluated(completed=True, score=self.score))
        self._scores[request.attempt.attempt_index] = found.score
        return found

    @activity.defn(name=names.FINALIZE)
    async def finalize(self, request: FinalizeRequest) -> Finalized:
        ended: Finalized = await self._do(names.FINALIZE, request, lambda: self.finalized(request))
        return ended

    def finalized(self, request: FinalizeRequest) -> Finalized:
        """The result of the real rules for an ending."""
        found = classify(request.facts)
        index = request.attempt.attempt_index
        reason = request.facts.infrastructure_failure_reason
        another = earns_new_attempt(
            reason,
            guest_failed=request.guest_failed,
            same_before=self._reasons.count(reason),
            attempts=index,
            budget=self.budget,
        )
        self._reasons.append(reason)
        score = None if reason is Infra.DESKTOP_BROKEN else self._scores.get(index)
        return Finalized(
            termination_reason=found.termination_reason,
            admitted=found.runtime_eligible,
            score=score,
            reward=reward_of(score, "binary"),
            another_attempt=another,
            selected=True,
        )

    @activity.defn(name=names.REGISTER_BATCH)
    async def register_batch(self, request: RegisterBatch) -> RegisteredBatch:
        registered: RegisteredBatch = await self._do(
            names.REGISTER_BATCH,
            request,
            lambda: RegisteredBatch.model_validate({"batch_id": request.batch_id, **self.registered}),
        )
        return registered

    @activity.defn(name=names.SET_CONTROL)
    async def set_control(self, change: Control) -> None:
        await self._do(names.SET_CONTROL, change, lambda: None)

    @activity.defn(name=names.PUMP)
    async def pump(self, request: PumpRequest) -> PumpResult:
        pumped: PumpResult = await self._do(names.PUMP, request, self.pumped)
        return pumped

    def pumped(self) -> PumpResult:
        """The next of `pumps`."""
        state = self.pumps[min(self.count(names.PUMP), len(self.pumps)) - 1]
        return PumpResult.model_validate({"state": state, "counts": self.counts})

    @activity.defn(name=names.CLOSE_BATCH)
    async def close_batch(self, request: CloseBatch) -> Counts:
        closed: Counts = await self._do(names.CLOSE_BATCH, request, lambda: self.counts)
        return closed

    def all(self) -> list[Callable[..., Any]]:
        """The activities, for a worker."""
        return [
            *(self.claim, self.finalize, self.register_batch, self.set_control, self.pump, self.close_batch),
            *(self.start_sandbox, self.examine_desktop, self.stop_sandbox, self.renew_lease, self.observe, self.act),
            *(self.decide, self.prepare_task, self.run_postconfig, self.evaluate),
        ]


@asynccontextmanager
async def fake_worker(client: Client, fakes: FakeActivities) -> AsyncIterator[None]:
    """A worker that runs the real workflows on these activities; a cancel reaches them at once."""
    beat = timedelta(milliseconds=20)
    async with Worker(
        client,
        task_queue=fakes.queue,
        workflows=[Episode, BenchmarkBatch],
        activities=fakes.all(),
        max_heartbeat_throttle_interval=beat,
        default_heartbeat_throttle_interval=beat,
    ):
        yield


def fails(reason: str, message: str = "made to fail", *details: str) -> Hook:
    """A hook that fails without retry, with a type of the closed vocabulary, as the real activities do."""

    async def fail(request: Any) -> NoReturn:
        raise ApplicationError(message, *details, type=reason, non_retryable=True)

    return fail


class Gate:
    """A hook that waits in an activity until it is opened or cancelled; `entered` is set when it has begun.

    A `stubborn` one does not notice a cancel: it answers all the same, as an activity does that was just done.
    """

    def __init__(self, answer: Callable[[], Any], *, stubborn: bool = False) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._answer = answer
        self._stubborn = stubborn

    async def __call__(self, request: Any) -> Any:
        self.entered.set()
        while not self.opened.is_set():
            try:
                activity.heartbeat()
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                self.cancelled.set()
                if self._stubborn:
                    break
                raise
        return self._answer()
