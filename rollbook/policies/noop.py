"""Waits, then answers DONE: what an honest task must score 0 for."""

import json

from rollbook.ledger.records import StoredCall
from rollbook.policies.base import Answer, CallLog, Turn


class NoopPolicy:
    """`waits` steps without an action, then DONE."""

    def __init__(self, waits: int) -> None:
        self._waits = waits

    async def decide(self, turn: Turn, log: CallLog) -> StoredCall:
        """No action, or DONE after the waits."""
        done = turn.step > self._waits
        said = json.dumps({"actions": ["DONE"] if done else []}).encode()
        return await log.commit(
            Answer(terminal_action="DONE" if done else None, response=said, model_name="noop", latency_s=0.0)
        )
