"""The registry of policy kinds: the built-in ones, and those of installed packages.

A package registers its kind as an entry point of the group `rollbook.policy_kinds`:

    [project.entry-points."rollbook.policy_kinds"]
    greedy = "acme_policies:GreedyKind"
"""

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from models.contract import Contract, PolicyContract, Resolved
from models.policy import PluginPolicy
from models.spec import BatchSpec, contract_of
from models.task import recorded_filter
from rollbook.errors import ConfigError, InvalidInput
from rollbook.ledger import Ledger
from rollbook.ledger.reader import BatchRow
from rollbook.ledger.records import AttemptContext
from rollbook.policies.base import Lookup, Policy, PolicyKind, Sources
from rollbook.policies.model import OpenAIKind
from rollbook.policies.replay import ReplayKind
from rollbook.policies.scripted import NoopKind, ScriptedKind

GROUP = "rollbook.policy_kinds"
BUILT_IN: tuple[PolicyKind[Any], ...] = (ScriptedKind(), NoopKind(), ReplayKind(), OpenAIKind())


@cache
def policy_kinds() -> dict[str, PolicyKind[Any]]:
    """Every kind of this installation by name; raises ConfigError for a package that registers a wrong one."""
    kinds = {kind.name: kind for kind in BUILT_IN}
    for entry in entry_points(group=GROUP):
        kind = entry.load()()
        if not isinstance(kind, PolicyKind) or "." not in kind.name or kind.name in kinds:
            raise ConfigError(f"{GROUP}: {entry.value} must be a PolicyKind with a new name of the form package.kind")
        kinds[kind.name] = kind
    return kinds


def policy_kind(name: str) -> PolicyKind[Any]:
    """The kind of a name; raises InvalidInput for one that is not installed here."""
    kinds = policy_kinds()
    if name not in kinds:
        raise InvalidInput(f"policy.kind: {name!r} is not installed here; there are {', '.join(sorted(kinds))}")
    return kinds[name]


async def policy_for(context: AttemptContext, sources: Sources) -> Policy:
    """The policy of an attempt.

    Raises InvalidInput for a kind that is not installed here, ConfigError when this worker lacks the endpoint.
    """
    return await policy_kind(context.contract.policy.kind).open(context, sources)


async def resolve_policy(
    spec: BatchSpec, ledger: Ledger | None, *, endpoints: list[str] | None = None, register: bool = False
) -> dict[str, Any]:
    """Members of `Resolved`: what the names in the policy mean now. Raises InvalidInput that names the field.

    Args:
        ledger: None is enough for a kind that reads no ledger.
        endpoints: names of the profiles that the workers have; None leaves the endpoint unchecked.
        register: keep the script that a replay means; without it nothing is written.
    """
    kind = policy_kind(spec.policy.kind)
    policy = kind.read(spec.policy)
    resolved = await kind.resolve(policy, Lookup(spec.purpose, ledger, endpoints, register))
    if isinstance(spec.policy, PluginPolicy):
        resolved["policy_part"] = policy.contract_part(spec.purpose, Resolved(**resolved))
    return resolved


async def probe_policy(spec: BatchSpec, sources: Sources) -> str:
    """See `PolicyKind.probe`."""
    kind = policy_kind(spec.policy.kind)
    return await kind.probe(kind.read(spec.policy), sources)


def contract_for(spec: BatchSpec, resolved: Resolved) -> Contract:
    """The contract; raises InvalidInput when the spec demands another agent."""
    try:
        return contract_of(spec, resolved)
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def pinned_spec(row: BatchRow) -> dict[str, Any]:
    """The newest launch's spec with its names pinned to what they meant then, so that it plans nothing new."""
    if row.spec is None or row.set_digest is None:
        raise InvalidInput(f"batch {row.batch_id} was never registered completely: submit its spec again")
    spec = dict(row.spec)
    spec["task_set"] = f"{spec['task_set'].partition('@')[0]}@{row.set_digest}"
    spec["extend"] = True  # rows that an earlier launch added stay planned
    spec["concurrency"], spec["max_attempts"] = row.concurrency, row.max_attempts
    spec["tasks"] = recorded_filter(spec.get("tasks", {}))
    policy = spec["policy"]
    spec["policy"] = policy_kind(policy["kind"]).pin(policy, PolicyContract.read(row.contract["policy"]))
    return spec
