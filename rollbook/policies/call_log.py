"""The call log of one step over the ledger and the artifact store."""

from dataclasses import dataclass

from models.episode import AttemptRef
from models.evidence import ArtifactRef
from rollbook.artifacts import ArtifactStore
from rollbook.ledger import Ledger
from rollbook.ledger.records import ModelCall, StoredCall
from rollbook.policies.base import Answer, summary_of

JSON = "application/json"


@dataclass(frozen=True)
class LedgerCallLog:
    """Commits as the run that owns the attempt; raises Fenced when that is no longer so."""

    ledger: Ledger
    artifacts: ArtifactStore
    attempt: AttemptRef
    run_id: str
    step: int
    policy_kind: str

    async def until_now(self) -> list[StoredCall]:
        """Every committed call up to and including this step, in order."""
        return await self.ledger.calls_until(self.attempt, self.step)

    async def commit(self, answer: Answer, parse_attempt: int = 1) -> StoredCall:
        """Store the bytes, then the row; the row that was committed first counts."""
        row = ModelCall(
            step=self.step,
            parse_attempt=parse_attempt,
            policy_kind=self.policy_kind,
            actions=answer.actions,
            terminal_action=answer.terminal_action,
            policy_stop_reason=answer.policy_stop_reason,
            completed=answer.completed,
            accepted=answer.accepted,
            parse_error=answer.parse_error,
            failure_kind=answer.failure_kind,
            finish_reason=answer.finish_reason,
            summary=summary_of(answer),
            prompt=await self._put(answer.prompt, JSON),
            response=await self._put(answer.response, answer.response_media_type),
            image=await self._put(answer.image, "image/png"),
            tokens=await self._put(answer.tokens, JSON),
            model_name=answer.model_name or None,
            model_version=answer.model_version,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            latency_s=answer.latency_s,
            telemetry=answer.telemetry,
            said=answer.said,
        )
        return await self.ledger.commit_model_call(self.attempt, self.run_id, row)

    async def _put(self, data: bytes | None, media_type: str) -> ArtifactRef | None:
        return None if data is None else await self.artifacts.put(data, media_type)
