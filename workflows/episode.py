"""Episode: one logical rollout, from claim to admission."""

import asyncio
import contextlib
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ApplicationError, is_cancelled_exception

from models import attributes, names
from models.episode import (
    AttemptRef,
    Claimed,
    ClaimRequest,
    Decision,
    EpisodeResult,
    EpisodeStart,
    EvaluateRequest,
    Finalized,
    read_start,
)
from models.outcome import POLICY_STOPS, Infra, backstop_after
from workflows import activity_calls
from workflows.activity_calls import EpisodeActivities, Failure, Superseded
from workflows.attempt_state import AttemptState
from workflows.deadline import Backstop, BackstopReached, Deadline, DeadlineReached
from workflows.shield import settled, shielded


@workflow.defn(name=names.EPISODE)
class Episode:
    """Attempt a rollout until the ledger reports that no further attempt is due.

    The workflow is the runner: it owns the step limit, the deadline, terminal actions, the horizon and the stop
    reason. It does not decide scores (the evaluator does) or counting (admission does).
    """

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        self._input = _read(inputs)
        # here and not in `run`: a signal of the first task is handled before `run` begins, and must not be undone
        self._frozen = isinstance(self._input, EpisodeStart) and self._input.frozen
        self._renewals = 0
        self._state: AttemptState | None = None
        self._backstop: Backstop | None = None

    @workflow.run
    async def run(self, *inputs: Any) -> EpisodeResult:
        start = self._input
        if isinstance(start, str):
            raise ApplicationError(start, type=names.INVALID_INPUT, non_retryable=True)
        n, cancelled = start.attempts, False
        while True:
            n += 1
            try:
                # shielded: a claim that is cut short may leave an attempt open for ever
                claimed, cut = await shielded(activity_calls.claim(ClaimRequest(rollout_key=start.rollout_key, n=n)))
                cancelled = cancelled or cut
                if claimed.status != "claimed":
                    return _not_due(start, claimed, n - 1, cancelled)
                try:
                    finalized, cancelled = await self._attempt(start, claimed, cancelled)
                except Superseded:
                    if claimed.run_id in ("", workflow.info().run_id):
                        raise
                    # a reset run replays the claim of the run before; a claim of its own closes that attempt
                    cancelled = cancelled or workflow.cancellation_reason() is not None
                    continue
            except Superseded:
                return EpisodeResult(rollout_key=start.rollout_key, status="superseded", attempts=n)
            except Failure as failure:
                # the ledger refused the claim or the end: a bug, left for people and the Janitor to see
                raise ApplicationError(failure.detail, type="LedgerRefused", non_retryable=True) from failure
            if not finalized.another_attempt:
                if cancelled:
                    raise asyncio.CancelledError(_why_cancelled())
                return _result(start, n, finalized)
            if workflow.info().is_continue_as_new_suggested() and not cancelled:
                self._continue_as_new(start, n)
            # cancelled after an end that earned another attempt: claim it and end it as cancelled at once, or the row
            # would stay in the state running without a workflow

    @workflow.signal(name=names.FREEZE)
    def freeze(self) -> None:
        """Suspend before the next step; the deadline stops, the desktop is kept."""
        self._frozen = True

    @workflow.signal(name=names.THAW)
    def thaw(self) -> None:
        """Continue after `freeze`."""
        self._frozen = False

    def _continue_as_new(self, start: EpisodeStart, attempts: int) -> NoReturn:
        """Begin the next attempt with an empty history: Temporal ends a workflow whose history grows without limit.

        An attempt of 1,000 steps has 12,050 events, a history may have 51,200, and Temporal suggests this after 4,096.
        Between two attempts nothing is open. A signal or a cancel that arrives now makes the server refuse the end of
        this run, and the workflow handles it first.
        """
        workflow.continue_as_new(start.model_copy(update={"attempts": attempts, "frozen": self._frozen}))

    async def _attempt(self, start: EpisodeStart, claimed: Claimed, cancelled: bool) -> tuple[Finalized, bool]:
        """Play one attempt, or end it at once when `cancelled`. Returns its end and whether a cancel has arrived."""
        assert claimed.plan is not None
        attempt = AttemptRef(rollout_key=start.rollout_key, attempt_index=claimed.attempt_index)
        call = EpisodeActivities(attempt, claimed.plan)
        state = self._state = AttemptState(attempt, claimed.plan)
        if cancelled:
            state.fail(Infra.CANCELLED, _why_cancelled())
        else:
            cancelled = await self._play_to_the_end(call, state)
            cancelled = await self._examine(call, state) or cancelled
        try:
            self._show("finalizing")
            finalized, cancelled_late = await shielded(call.finalize(state.finalize_request()))
        except GeneratorExit:  # the worker evicts this run: nothing may be awaited any more
            raise
        except BaseException:
            await self._stop_sandbox(call)
            raise
        state.finalized = True
        self._show("stopping the desktop")
        cancelled_later = await self._stop_sandbox(call)
        self._show(f"ended: {finalized.termination_reason}")
        _publish(state, finalized)
        return finalized, cancelled or cancelled_late or cancelled_later

    async def _play_to_the_end(self, call: EpisodeActivities, state: AttemptState) -> bool:
        """Play the attempt; every failure becomes a fact of the state. Returns whether a cancel arrived."""
        cancelled = False
        try:
            await self._play(call, state)
        except Superseded:
            state.fail(Infra.SUPERSEDED, "a newer attempt was claimed")
        except Failure as failure:
            state.fail(failure.reason, failure.detail, failure.guest_failed)
        except BaseException as error:
            if not (isinstance(error, asyncio.CancelledError) or is_cancelled_exception(error)):
                raise
            state.fail(Infra.CANCELLED, _why_cancelled())
            cancelled = True
        if self._backstop is not None:
            await self._backstop.ended()
        return cancelled

    async def _examine(self, call: EpisodeActivities, state: AttemptState) -> bool:
        """Have the provider look at the desktop from outside. Returns whether a cancel arrived meanwhile."""
        if not state.examinable:
            return False
        assert state.desktop is not None
        self._show("examining the desktop")
        try:
            state.examined, cancelled = await shielded(call.examine_desktop(state.desktop, failed=bool(state.reasons)))
        except Superseded:
            state.fail(Infra.SUPERSEDED, "a newer attempt was claimed")
        except Failure as failure:
            # without the look a score would rest on the word of the guest alone
            state.fail(failure.reason, f"the desktop could not be examined: {failure.detail}")
        else:
            return cancelled
        return False

    async def _play(self, call: EpisodeActivities, state: AttemptState) -> None:
        self._show("starting the desktop")
        state.desktop = await settled(call.start_sandbox())
        seconds = backstop_after(state.plan.deadline_s)
        backstop = self._backstop = Backstop(seconds, lambda: self._frozen)
        deadline = Deadline(state.plan.deadline_s)
        try:
            self._show("preparing the task")
            prepared = await backstop.guard(call.prepare_task(state.desktop))
            state.files = prepared.files
            deadline.spend(prepared.worked_s)
            observed = await backstop.guard(call.observe(state.desktop))
            state.observation = observed.observation
            deadline.spend(observed.worked_s)
            await self._steps(call, state, deadline, backstop)
        except DeadlineReached:
            state.fail(Infra.TIMEOUT, f"the deadline of {state.plan.deadline_s:g} s of work was reached")
        except BackstopReached:
            state.fail(Infra.TASK_TIMEOUT, f"the attempt was not over after {seconds:g} s, most of them waiting")
        except Failure as failure:
            state.fail(failure.reason, failure.detail, failure.guest_failed)
            state.refused = failure.refused
        finally:
            backstop.stop()  # awaits nothing: an evicted run closes its coroutines, which must not wait
        await backstop.ended()
        if state.observation is not None and state.desktop_usable:
            await self._evaluate(call, state)

    async def _steps(
        self, call: EpisodeActivities, state: AttemptState, deadline: Deadline, backstop: Backstop
    ) -> None:
        for step in range(1, state.plan.max_steps + 1):
            await self._while_frozen(call)
            deadline.check()
            self._show("deciding")
            assert state.observation is not None
            decision = await backstop.guard(call.decide(step, state.observation, deadline.remaining))
            deadline.spend(decision.worked_s)
            state.steps, state.last_action = step, decision.summary
            if not decision.model_call_completed:
                raise Failure(Infra.MODEL_CALL_FAILED, decision.summary)
            if stop := decision.policy_stop_reason:
                if stop not in POLICY_STOPS:  # OutcomeFacts would refuse it, and the attempt could never end
                    raise Failure(Infra.ROLLOUT_ERROR, f"the policy stopped with {stop!r}, which is not a stop reason")
                state.policy_stop_reason = stop
                return
            deadline.spend(await self._act(call, state, backstop, decision))
            if decision.terminal_action:
                state.terminal_action = decision.terminal_action
                return
        state.horizon_reached = True

    async def _act(self, call: EpisodeActivities, state: AttemptState, backstop: Backstop, decision: Decision) -> float:
        """Run the step's actions and observe; a step without any still observes, unless it ends the episode.

        Returns the seconds that it worked.
        """
        if decision.terminal_action and not decision.action_count:
            return 0.0
        assert state.desktop is not None
        self._show("acting")
        state.acted = state.acted or decision.action_count > 0
        acted = await backstop.guard(call.act(state.steps, state.desktop, decision))
        state.observation = acted.observation
        if acted.failure is not None:
            raise Failure(acted.failure, f"step {state.steps}: {decision.summary}")
        return acted.worked_s

    async def _evaluate(self, call: EpisodeActivities, state: AttemptState) -> None:
        assert state.desktop is not None
        self._show("postconfig")
        state.files |= await settled(call.run_postconfig(state.desktop))
        self._show("evaluating")
        request = EvaluateRequest(
            attempt=state.attempt, desktop=state.desktop, terminal_action=state.terminal_action, files=state.files
        )
        state.evaluation = await settled(call.evaluate(request))
        if (reason := state.evaluation.reason) is not None:
            if reason is Infra.DESKTOP_BROKEN and not state.acted:
                reason = Infra.EVALUATOR_ERROR  # the agent left the desktop as it was: the task's own evaluation fails
            state.fail(reason, state.evaluation.detail, state.evaluation.guest_failed)

    async def _while_frozen(self, call: EpisodeActivities) -> None:
        """Wait for `thaw`, renewing the desktop's lease meanwhile."""
        assert self._state is not None
        while self._frozen:
            self._show("frozen")
            with contextlib.suppress(TimeoutError):
                seconds = self._state.plan.lease_s / 3
                await workflow.wait_condition(lambda: not self._frozen, timeout=seconds)
                return
            self._renewals += 1
            await settled(call.renew_lease(self._renewals))

    async def _stop_sandbox(self, call: EpisodeActivities) -> bool:
        """Stop the desktop. A failure never changes the result: the Janitor removes what remains."""

        async def stop() -> None:
            try:
                await call.stop_sandbox()
            except Exception as error:
                workflow.logger.warning("the desktop was not stopped: %s", error)

        _, cancelled = await shielded(stop())
        return cancelled

    def _show(self, phase: str) -> None:
        assert self._state is not None
        self._state.phase = phase
        workflow.set_current_details(self._state.details())


def _read(inputs: tuple[Any, ...]) -> EpisodeStart | str:
    """The input, or an error message: an input that Temporal cannot decode would be retried for ever."""
    try:
        return read_start(inputs)
    except ValueError as error:
        return str(error)


def _why_cancelled() -> str:
    return workflow.cancellation_reason() or "cancelled"


def _not_due(start: EpisodeStart, claimed: Claimed, attempts: int, cancelled: bool) -> EpisodeResult:
    if cancelled:
        raise asyncio.CancelledError(_why_cancelled())
    status: Any = "already final" if claimed.status == "final" else "stopping"
    return EpisodeResult(rollout_key=start.rollout_key, status=status, attempts=attempts)


def _result(start: EpisodeStart, attempts: int, finalized: Finalized) -> EpisodeResult:
    return EpisodeResult(
        rollout_key=start.rollout_key,
        status="final",
        attempts=attempts,
        termination_reason=finalized.termination_reason,
        admitted=finalized.admitted,
        score=finalized.score if finalized.admitted else None,
        reward=finalized.reward if finalized.admitted else None,
    )


def _publish(state: AttemptState, finalized: Finalized) -> None:
    """One upsert of search attributes when an attempt has ended."""
    changes: list[SearchAttributeUpdate[Any]] = [
        SearchAttributeKey.for_keyword(attributes.TERMINATION).value_set(finalized.termination_reason),
        SearchAttributeKey.for_keyword(attributes.OUTCOME).value_set("admitted" if finalized.admitted else "masked"),
        SearchAttributeKey.for_bool(attributes.ADMITTED).value_set(finalized.admitted),
        SearchAttributeKey.for_int(attributes.ATTEMPT).value_set(state.attempt.attempt_index),
        SearchAttributeKey.for_int(attributes.STEPS).value_set(state.steps),
    ]
    if finalized.score is not None and finalized.admitted:  # people would read a masked one as a score
        changes.append(SearchAttributeKey.for_float(attributes.SCORE).value_set(finalized.score))
    workflow.upsert_search_attributes(changes)
