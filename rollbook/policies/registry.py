"""Chooses the policy that a contract names."""

from typing import Protocol

from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger
from rollbook.ledger.records import AttemptContext
from rollbook.policies.base import Policy
from rollbook.policies.client import ModelClients
from rollbook.policies.model import ModelPolicy
from rollbook.policies.noop import NoopPolicy
from rollbook.policies.scripted import ScriptedPolicy
from rollbook.policies.scripts import Scripts


class Sources(Protocol):
    """What policies are made from; the worker's services."""

    @property
    def ledger(self) -> Ledger:
        """Where registered scripts and specs are read from."""
        ...

    @property
    def scripts(self) -> Scripts:
        """Scripts that were read before."""
        ...

    @property
    def models(self) -> ModelClients:
        """Clients of the endpoint profiles that this worker has."""
        ...


async def policy_for(context: AttemptContext, services: Sources) -> Policy:
    """The policy of an attempt.

    Raises InvalidInput for a kind that this version does not know, ConfigError when this worker lacks the endpoint.
    """
    policy = context.contract.policy
    kind = policy.kind
    if kind == "noop":
        return NoopPolicy(policy.waits)
    if kind in ("scripted", "replay"):
        script = await services.scripts.get(services.ledger, policy.script_digest or "")
        return ScriptedPolicy(script.tasks.get(context.task_id, script.default), name=kind)
    if kind == "openai":
        # the newest launch says where the model is served: the contract does not depend on it
        endpoint = (await services.ledger.launched_spec(context.batch_id))["policy"]["endpoint"]
        return ModelPolicy(context, services.models.get(endpoint))
    raise InvalidInput(f"policy.kind: {kind!r} is unknown to this version")
