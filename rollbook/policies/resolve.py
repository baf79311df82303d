"""What the names in a spec's policy mean now: asked once, when a batch is registered."""

from typing import Any

from models.contract import Contract, Purpose, Resolved
from models.identity import digest
from models.policy import OpenAIPolicy, Policy, ReplayPolicy, ScriptedPolicy
from models.spec import BatchSpec, contract_of
from rollbook.errors import InvalidInput
from rollbook.ledger import Ledger
from rollbook.policies.client.request import OWNED
from rollbook.policies.protocols.registry import PARSERS, known_protocol
from rollbook.policies.replay import recorded_script, script_name


async def resolve_policy(
    spec: BatchSpec, ledger: Ledger, *, endpoints: list[str] | None = None, register: bool = False
) -> dict[str, Any]:
    """Members of `Resolved`; raises InvalidInput that names the field.

    `endpoints`: names of the profiles that the workers have; None leaves the endpoint unchecked. `register`: keep the
    script that a replay means; without it nothing is written.
    """
    policy: Policy = spec.policy
    if isinstance(policy, ScriptedPolicy):
        return {"script_digest": await ledger.find_script(policy.script)}
    if isinstance(policy, ReplayPolicy):
        body = await recorded_script(ledger, policy)
        if register:
            await ledger.register_script(script_name(policy), body)
        return {"script_digest": digest(body)}
    if isinstance(policy, OpenAIPolicy):
        if endpoints is not None and policy.endpoint not in endpoints:
            known = ", ".join(endpoints) or "none; see ROLLBOOK_ENDPOINTS_FILE"
            raise InvalidInput(f"policy.endpoint: no endpoint profile {policy.endpoint!r} here (there are: {known})")
        parsers: dict[Purpose, str] = {"train": parser_of(policy, "train"), "eval": parser_of(policy, "eval")}
        return {"parser_id": parsers[spec.purpose]}
    return {}


def parser_of(policy: OpenAIPolicy, purpose: Purpose) -> str:
    """The parser of the policy's protocol for a purpose; raises InvalidInput for what this version cannot send."""
    agent, sampling = policy.agent(purpose)
    if taken := sorted(OWNED & sampling["extra"].keys()):
        raise InvalidInput(f"policy.sampling.extra: {', '.join(taken)} cannot be set here")
    return PARSERS[known_protocol(agent["protocol_id"], "policy.protocol")]


def contract_for(spec: BatchSpec, resolved: Resolved) -> Contract:
    """The contract; raises InvalidInput when the spec demands another agent."""
    try:
        return contract_of(spec, resolved)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
