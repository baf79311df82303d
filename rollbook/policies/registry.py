"""Chooses the policy that a contract names."""

from typing import Any, Protocol

from rollbook.errors import InvalidInput
from rollbook.policies.base import Policy
from rollbook.policies.noop import NoopPolicy
from rollbook.policies.scripted import ScriptedPolicy, read_script


class ScriptSource(Protocol):
    """Where registered scripts are read from."""

    async def script_body(self, script_digest: str) -> dict[str, Any]:
        """The script file with this digest."""
        ...


async def policy_for(contract: dict[str, Any], task_id: str, scripts: ScriptSource) -> Policy:
    """The policy of a contract for one task; raises InvalidInput for a kind that this version does not know."""
    policy = contract["policy"]
    if policy["kind"] == "noop":
        return NoopPolicy(int(policy["waits"]))
    if policy["kind"] == "scripted":
        script = read_script(await scripts.script_body(policy["script_digest"]))
        return ScriptedPolicy(script.tasks.get(task_id, script.default))
    raise InvalidInput(f"policy.kind: {policy['kind']!r} is unknown to this version")
