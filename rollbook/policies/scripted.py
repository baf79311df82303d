"""Plays the recorded steps of a registered script file.

File: `{"schema_version": 1, "tasks": {"<task_id>": {"steps": [{"actions": ["pyautogui…", "WAIT", "DONE"]}]}}}`.
A step may instead hold `{"stop": "model_response_unparseable"}`. After the last step the policy has nothing to say:
steps without an action, until the runner's step limit ends the episode.
"""

import json
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from models.base import Input
from models.explain import explain
from models.outcome import POLICY_STOPS
from rollbook.errors import InvalidInput
from rollbook.ledger.records import StoredCall
from rollbook.policies.base import Answer, CallLog, Turn, split_terminal

Action = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class ScriptStep(Input):
    """One answer of the policy."""

    thought: str = ""
    actions: list[Action] = []
    stop: str | None = None
    """A policy stop reason instead of actions."""

    @model_validator(mode="after")
    def _one_kind(self) -> "ScriptStep":
        if self.stop is not None and self.actions:
            raise ValueError("a step holds either 'actions' or 'stop'")
        if self.stop is not None and self.stop not in POLICY_STOPS:
            raise ValueError(f"'stop' must be one of {', '.join(POLICY_STOPS)}")
        return self


class TaskScript(Input):
    """The steps for one task."""

    steps: list[ScriptStep] = Field(min_length=1)


class Script(Input):
    """A script file."""

    schema_version: int = Field(default=1, ge=1, le=1)
    note: str = ""
    tasks: dict[str, TaskScript]
    default: TaskScript | None = None
    """Steps for tasks that are not named."""


def read_script(raw: Any) -> Script:
    """Validate a script file; raises InvalidInput that names the field."""
    try:
        return Script.model_validate(raw)
    except ValidationError as error:
        raise InvalidInput(f"script: {explain(error)}") from error


class ScriptedPolicy:
    """Plays the steps of one task."""

    def __init__(self, script: TaskScript | None, name: str = "scripted") -> None:
        self._steps = script.steps if script else []
        self._name = name

    async def decide(self, turn: Turn, log: CallLog) -> StoredCall:
        """The recorded step, or no action after the last one."""
        return await log.commit(self._answer(turn.step))

    def _answer(self, number: int) -> Answer:
        if number > len(self._steps):
            return Answer(response=b'{"actions":[]}', model_name=self._name, latency_s=0.0)
        step = self._steps[number - 1]
        said = json.dumps(step.model_dump(), ensure_ascii=False).encode()
        actions, terminal = split_terminal(list(step.actions))
        return Answer(actions, terminal, step.stop, said, model_name=self._name, latency_s=0.0)
