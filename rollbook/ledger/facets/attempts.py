"""One attempt from its claim to its end, and what was recorded of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from models.episode import AttemptRef, Finalized, FinalizeRequest, Observation
from rollbook.errors import LedgerError
from rollbook.ledger import claim, commits, fence, finalize, steps
from rollbook.ledger import recorded as recording
from rollbook.ledger.engine import reading, transaction
from rollbook.ledger.facets.base import Facet
from rollbook.ledger.records import (
    AttemptContext,
    Claim,
    Evaluation,
    ModelCall,
    StepSoFar,
    StoredCall,
    StoredEvaluation,
    StoredTurn,
)
from rollbook.ledger.snapshot import Snapshot, snapshot


class Attempts(Facet):
    """One attempt from its claim to its end, and what was recorded of it.

    `attempt` and `run_id` together are the fence: writes of an episode raise Fenced when another attempt is current.
    """

    async def claim(self, rollout_key: str, run_id: str, workflow_id: str, n: int) -> Claim:
        """Claim number `n` of a run: the attempt, or `final`, or `stopping`; raises Fenced."""
        async with transaction(self.engine) as conn:
            return await claim.claim(conn, rollout_key, run_id, workflow_id, n)

    async def attempt_context(self, attempt: AttemptRef, run_id: str) -> AttemptContext:
        """What an activity needs to know of its attempt; raises Fenced."""
        async with reading(self.engine) as conn:
            return await fence.attempt_context(conn, attempt, run_id)

    async def step(self, attempt: AttemptRef, run_id: str, step: int) -> StepSoFar:
        """The attempt and what is committed of one of its steps, in one look; raises Fenced."""
        async with reading(self.engine) as conn:
            return await steps.so_far(conn, self._contexts, attempt, run_id, step)

    async def finalize(self, request: FinalizeRequest, run_id: str) -> Finalized:
        """End an attempt: outcome, decision, selection; raises Fenced or LedgerConflict."""
        async with transaction(self.engine) as conn:
            return await finalize.finalize(conn, request, run_id)

    async def commit_model_call(self, attempt: AttemptRef, run_id: str, call: ModelCall) -> StoredCall:
        """Commit a call of the policy; what was committed first counts."""
        async with transaction(self.engine) as conn:
            return await commits.commit_model_call(conn, attempt, run_id, call)

    async def find_model_call(self, attempt: AttemptRef, step: int) -> StoredCall | None:
        """The call that decided a step; None before it."""
        async with reading(self.engine) as conn:
            return await commits.find_model_call(conn, attempt, step)

    async def calls_until(self, attempt: AttemptRef, step: int) -> list[StoredCall]:
        """Every call of an attempt up to and including a step, in their order."""
        async with reading(self.engine) as conn:
            return await commits.calls_until(conn, attempt, step)

    async def model_call(self, attempt: AttemptRef, step: int) -> StoredCall:
        """The call that decided a step; raises LedgerError when there is none."""
        found = await self.find_model_call(attempt, step)
        if found is None:
            raise LedgerError(f"step {step} of {attempt.rollout_key} was not decided")
        return found

    async def commit_turn(
        self,
        attempt: AttemptRef,
        run_id: str,
        *,
        step: int,
        observation: Observation,
        actions: list[dict[str, Any]],
        started_at: float,
    ) -> StoredTurn:
        """Commit what a step did and what was seen after it; what was committed first counts."""
        async with transaction(self.engine) as conn:
            return await commits.commit_turn(
                conn, attempt, run_id, step=step, observation=observation, actions=actions, started_at=started_at
            )

    async def turn(self, attempt: AttemptRef, step: int) -> StoredTurn | None:
        """The committed turn of a step; None before it."""
        async with reading(self.engine) as conn:
            return await commits.turn(conn, attempt, step)

    async def latest_observation(self, rollout_key: str) -> Observation | None:
        """What was last seen of a rollout."""
        async with reading(self.engine) as conn:
            return await commits.latest_observation(conn, rollout_key)

    async def commit_evaluation(self, attempt: AttemptRef, run_id: str, evaluation: Evaluation) -> StoredEvaluation:
        """Commit the evaluator's answer; what was committed first counts."""
        async with transaction(self.engine) as conn:
            return await commits.commit_evaluation(conn, attempt, run_id, evaluation)

    async def evaluation(self, attempt: AttemptRef) -> StoredEvaluation | None:
        """The committed evaluation of an attempt; None before it."""
        async with reading(self.engine) as conn:
            return await commits.find_evaluation(conn, attempt)

    async def rollouts_of(self, batch_id: str) -> list[recording.Row]:
        """The planned rollouts of a batch, in plan order."""
        async with reading(self.engine) as conn:
            return await recording.rollouts_of(conn, batch_id)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """Everything recorded, as it is now: reads of one moment while the context is open."""
        async with snapshot(self.engine) as seen:
            yield seen

    async def recorded(self, rollout_key: str, attempt: int | None = None) -> recording.Recorded:
        """Everything about one attempt, the selected one by default; raises InvalidInput."""
        async with transaction(self.engine) as conn:
            return await recording.recorded(conn, rollout_key, attempt)
