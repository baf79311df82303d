"""Replay: the recorded actions of a rollout or a batch, as a script that can be played on fresh desktops.

A replay is resolved when its batch is registered: the actions become a script with a digest, the digest becomes part of
the contract. What is recorded later, or superseded, changes nothing.
"""

from typing import Any

from models.identity import digest
from models.policy import ReplayPolicy
from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger
from rollbook.ledger.reader import RecordedAttempt
from rollbook.ledger.records import CallRecord
from rollbook.policies.base import Lookup
from rollbook.policies.scripted import ScriptKind


class ReplayKind(ScriptKind[ReplayPolicy]):
    """Kind `replay`: the script is made of what was recorded."""

    name = "replay"
    spec = ReplayPolicy

    async def resolve(self, policy: ReplayPolicy, lookup: Lookup) -> dict[str, Any]:
        """The digest of the script, which is registered with the batch."""
        ledger = lookup.require_ledger()
        script = await recorded_script(ledger, policy)
        if lookup.register:
            await ledger.register_script(script_name(policy), script)
        return {"script_digest": digest(script)}


async def recorded_script(ledger: Ledger, policy: ReplayPolicy) -> dict[str, Any]:
    """The script that the policy means now. Raises InvalidInput when nothing was recorded."""
    if policy.rollout is not None:
        sources = [await ledger.recorded(policy.rollout, policy.attempt)]
    else:
        assert policy.batch is not None
        sources = [await ledger.recorded(key) for key in await _admitted(ledger, policy.batch)]
    return script_of(sources)


def script_of(sources: list[RecordedAttempt]) -> dict[str, Any]:
    """The script that plays the recorded decisions again, step by step; a pure function of the records."""
    tasks = {}
    for source in sources:
        steps = [_step(call) for call in source.calls if call.decides]
        if not steps:
            raise InvalidInput(f"policy: attempt {source.attempt_index} of {source.key} decided nothing to replay")
        tasks[str(source.rollout["task_id"])] = {"steps": steps}
    return {"schema_version": 1, "note": "recorded", "tasks": tasks}


async def _admitted(ledger: Ledger, batch_id: str) -> list[str]:
    first: dict[str, str] = {}
    for row in await ledger.rollouts_of(batch_id):
        if row["admitted"]:
            first.setdefault(row["task_id"], row["rollout_key"])
    if not first:
        raise InvalidInput(f"policy.batch: {batch_id} has no admitted rollout to replay")
    return list(first.values())


def _step(call: CallRecord) -> dict[str, Any]:
    if call.policy_stop_reason:
        return {"thought": "", "actions": [], "stop": call.policy_stop_reason}
    said = [*call.actions, *([call.terminal_action] if call.terminal_action else [])]
    return {"thought": "", "actions": said, "stop": None}


def script_name(policy: ReplayPolicy) -> str:
    """Under which name its script is registered."""
    source = policy.batch or str(policy.rollout)
    return "replay-" + "".join(c if c.isalnum() or c in "_.-" else "-" for c in source)[:150]
