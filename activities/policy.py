"""The policy's turn: decide. Its answer is durable before anything acts on it."""

import asyncio
import time

from temporalio import activity

from activities.support import Activities, beating, reported, run_id
from models import names
from models.episode import DecideRequest, Decision
from rollbook.errors import ModelTimeout
from rollbook.ledger.records import AttemptContext, ModelCall
from rollbook.policies import Answer, Turn, policy_for
from rollbook.policies.base import summary_of
from rollbook.services import Services


class PolicyActivities:
    """Ask the policy that the contract names."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.decide]

    @activity.defn(name=names.DECIDE)
    @reported
    async def decide(self, request: DecideRequest) -> Decision:
        """The stored answer of this step, or a new one: two racing tries agree on what was committed first."""
        ledger = self._services.ledger
        context = await ledger.attempt_context(request.attempt, run_id())
        stored = await ledger.find_model_call(request.attempt, request.step)
        if stored is None:
            began = time.monotonic()
            async with beating():
                answer = await self._ask(context, request)
            response = await self._services.artifacts.put(answer.response, answer.response_media_type)
            row = ModelCall(
                step=request.step,
                policy_kind=context.contract["policy"]["kind"],
                actions=answer.actions,
                terminal_action=answer.terminal_action,
                policy_stop_reason=answer.policy_stop_reason,
                accepted=answer.policy_stop_reason is None,
                summary=summary_of(answer),
                response=response,
                model_name=answer.model_name or None,
                latency_s=time.monotonic() - began,
            )
            stored = await ledger.commit_model_call(request.attempt, run_id(), row)
        return Decision(
            action_count=len(stored.actions),
            terminal_action=stored.terminal_action,
            policy_stop_reason=stored.policy_stop_reason,
            model_call_completed=stored.completed,
            summary=stored.summary,
        )

    async def _ask(self, context: AttemptContext, request: DecideRequest) -> Answer:
        policy = await policy_for(context.contract, context.task_id, self._services.ledger)
        turn = Turn(
            rollout_key=context.rollout_key,
            attempt_index=context.attempt_index,
            step=request.step,
            task_id=context.task_id,
            instruction=context.task["instruction"],
            contract=context.contract,
            observation=request.observation,
            read_artifact=self._services.artifacts.get,
        )
        seconds = context.contract["limits"]["model_timeout_s"]
        try:
            async with asyncio.timeout(seconds):
                return await policy.decide(turn)
        except TimeoutError as error:
            raise ModelTimeout(f"the policy gave no answer within {seconds:g} s") from error
