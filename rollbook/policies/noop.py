"""Waits, then answers DONE: what an honest task must score 0 for."""

import json

from rollbook.policies.base import Answer, Turn


class NoopPolicy:
    """`waits` steps without an action, then DONE."""

    def __init__(self, waits: int) -> None:
        self._waits = waits

    async def decide(self, turn: Turn) -> Answer:
        """No action, or DONE after the waits."""
        done = turn.step > self._waits
        said = json.dumps({"actions": ["DONE"] if done else []}).encode()
        return Answer(terminal_action="DONE" if done else None, response=said, model_name="noop")
