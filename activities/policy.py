"""decide: ask the policy. Its answer is committed before anything acts on it."""

from activities.support import Activities, beating, implements, run_id, time_left
from models.activities import DECIDE
from models.episode import DecideRequest, Decision
from rollbook.ledger.records import CallRecord
from rollbook.policies import Turn, policy_for
from rollbook.policies.call_log import LedgerCallLog
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
        context, stored = so_far.context, so_far.call
        if stored is None:
            kind = context.contract.policy.kind
            artifacts, left = self._services.artifacts, time_left()
            log = LedgerCallLog(ledger, artifacts, request.attempt, run_id(), request.step, kind, left)
            turn = Turn(request.step, context, request.observation, artifacts.get, left)
            async with beating():
                policy = await policy_for(context, self._services)
                stored = await policy.decide(turn, log)
        return _decision(stored)


def _decision(stored: CallRecord) -> Decision:
    return Decision(
        action_count=len(stored.actions),
        terminal_action=stored.terminal_action,
        policy_stop_reason=stored.policy_stop_reason,
        # a context that cannot shrink is refused by the server, yet it is the policy's own ending and evaluated
        model_call_completed=stored.completed or stored.policy_stop_reason is not None,
        summary=stored.summary,
    )
