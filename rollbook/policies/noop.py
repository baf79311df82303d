"""Waits, then answers DONE: the floor that every honest task must score 0 for."""

import json

from models.policy import NoopPolicy
from rollbook.ledger.records import AttemptContext, StoredCall
from rollbook.policies.base import Answer, CallLog, PolicyKind, Sources, Turn


class NoopKind(PolicyKind[NoopPolicy]):
    """Kind `noop`: needs nothing."""

    name = "noop"
    spec = NoopPolicy

    async def open(self, context: AttemptContext, sources: Sources) -> "Waits":
        """The number of waits is in the contract."""
        return Waits(context.contract.policy.waits)


class Waits:
    """`waits` steps without an action, then DONE."""

    def __init__(self, waits: int) -> None:
        self._waits = waits

    async def decide(self, turn: Turn, log: CallLog) -> StoredCall:
        """No action, or DONE after the waits."""
        done = turn.step > self._waits
        response = json.dumps({"actions": ["DONE"] if done else []}).encode()
        return await log.commit(
            Answer(terminal_action="DONE" if done else None, response=response, model_name="noop", latency_s=0.0)
        )
