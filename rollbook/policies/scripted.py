"""Plays the recorded steps of a registered script file.

File: `{"schema_version": 1, "tasks": {"<task_id>": {"steps": [{"actions": ["pyautogui…", "WAIT", "DONE"]}]}}}`.
A step may instead hold `{"stop": "model_response_unparseable"}`. After the last step the policy has nothing to say:
steps without an action, until the runner's step limit ends the episode.
"""

import json
from collections import OrderedDict
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from models.base import Input
from models.contract import PolicyContract
from models.explain import explain
from models.outcome import POLICY_STOPS
from models.policy import NoopPolicy, ScriptedPolicy
from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger
from rollbook.ledger.records import AttemptContext, CallRecord
from rollbook.policies.base import Answer, CallLog, Lookup, PolicyKind, Sources, Spec, Turn, split_terminal

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


class Scripts:
    """Parsed scripts by digest, the last used ones: parsed once, not once per step.

    A digest names one content for ever: nothing here is stale.
    """

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._scripts: OrderedDict[str, Script] = OrderedDict()

    async def get(self, ledger: Ledger, script_digest: str) -> Script:
        """The script of a digest; raises InvalidInput when the ledger has none, or when it is not a script."""
        script = self._scripts.get(script_digest)
        if script is None:
            script = read_script(await ledger.script_body(script_digest))
            self._scripts[script_digest] = script
            while len(self._scripts) > self._size:
                self._scripts.popitem(last=False)
        self._scripts.move_to_end(script_digest)
        return script


class ScriptKind(PolicyKind[Spec]):
    """Base of the kinds whose contract is a script."""

    reads_ledger = True

    async def open(self, context: AttemptContext, sources: Sources) -> "ScriptPlayer":
        """The steps for the task, else the script's default."""
        script = await sources.scripts.get(sources.ledger, context.contract.policy.script_digest or "")
        return ScriptPlayer(script.tasks.get(context.task_id, script.default), name=self.name)


class ScriptedKind(ScriptKind[ScriptedPolicy]):
    """Kind `scripted`: a script file that was registered under a name."""

    name = "scripted"
    spec = ScriptedPolicy

    async def resolve(self, policy: ScriptedPolicy, lookup: Lookup) -> dict[str, Any]:
        """The digest of the named script."""
        return await self.find_names(policy, lookup.require_ledger())

    async def find_names(self, policy: ScriptedPolicy, ledger: Ledger) -> dict[str, Any]:
        """The digest of the named script."""
        return {"script_digest": await ledger.find_script(policy.script)}

    def pin(self, policy: dict[str, Any], contract: PolicyContract) -> dict[str, Any]:
        """The script by name and digest."""
        return policy | {"script": f"{policy['script'].partition('@')[0]}@{contract.script_digest}"}


class ScriptPlayer:
    """Plays the steps of one task."""

    def __init__(self, script: TaskScript | None, name: str = "scripted") -> None:
        self._steps = script.steps if script else []
        self._name = name

    async def decide(self, turn: Turn, log: CallLog) -> CallRecord:
        """The recorded step, or no action after the last one."""
        return await log.commit(self._answer(turn.step))

    def _answer(self, number: int) -> Answer:
        if number > len(self._steps):
            return Answer(response=b'{"actions":[]}', model_name=self._name, latency_s=0.0)
        step = self._steps[number - 1]
        response = json.dumps(step.model_dump(), ensure_ascii=False).encode()
        actions, terminal = split_terminal(list(step.actions))
        return Answer(actions, terminal, step.stop, response, model_name=self._name, latency_s=0.0)


# Waits, then answers DONE: the floor that every honest task must score 0 for.


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

    async def decide(self, turn: Turn, log: CallLog) -> CallRecord:
        """No action, or DONE after the waits."""
        done = turn.step > self._waits
        response = json.dumps({"actions": ["DONE"] if done else []}).encode()
        return await log.commit(
            Answer(terminal_action="DONE" if done else None, response=response, model_name="noop", latency_s=0.0)
        )
