"""decide: ask the policy. Its answer is committed before anything acts on it."""

import math

from activities.support import Activities, beating, implements, run_id, time_left
from models.activities import DECIDE
from models.episode import DecideRequest, Decision
from rollbook.ledger.records import CallRecord
from rollbook.policies import Turn, policy_for
from rollbook.policies.call_log import LedgerCallLog, answered_s
from rollbook.workclock import WorkClock
from rollbook.worker.services import Services


class PolicyActivities:
    """Ask the policy that the contract names."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.decide]

    @implements(DECIDE)
    async def decide(self, request: DecideRequest) -> Decision:
        """Return the stored answer of this step, or ask for one: two racing tries agree on the one committed first."""
        ledger = self._services.ledger
        so_far = await ledger.step(request.attempt, run_id(), request.step)
        context, stored, clock = so_far.context, so_far.call, WorkClock()
        if stored is None:
            kind = context.contract.policy.kind
            artifacts, left = self._services.artifacts, time_left()
            log = LedgerCallLog(ledger, artifacts, request.attempt, run_id(), request.step, kind, left)
            budget_s = math.inf if request.budget_s is None else request.budget_s
            turn = Turn(request.step, context, request.observation, artifacts.get, left, budget_s)
            async with beating(), clock:
                policy = await policy_for(context, self._services)
                stored = await policy.decide(turn, log)
        return _decision(stored, await self._worked(request, stored, clock.seconds))

    async def _worked(self, request: DecideRequest, stored: CallRecord, measured_s: float) -> float:
        """Seconds of the step's answered calls, whichever tries of the activity made them.

        Pauses after failed calls, rate limits and a ledger that was away are not among them.
        """
        if stored.latency_s is None:
            return measured_s
        if stored.parse_attempt == 1:
            return stored.latency_s
        return answered_s(await self._services.ledger.calls_until(request.attempt, request.step), request.step)


def _decision(stored: CallRecord, worked_s: float) -> Decision:
    return Decision(
        action_count=len(stored.actions),
        terminal_action=stored.terminal_action,
        policy_stop_reason=stored.policy_stop_reason,
        # a context that cannot shrink is refused by the server, yet it is the policy's own ending and evaluated
        model_call_completed=stored.completed or stored.policy_stop_reason is not None,
        worked_s=worked_s,
        summary=stored.summary,
    )
