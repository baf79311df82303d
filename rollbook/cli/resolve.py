"""What a spec would mean if it were submitted now (`submit --dry-run`)."""

from typing import Any

from models.contract import Resolved
from models.spec import BatchSpec
from rollbook.cli.opening import open_ledger
from rollbook.cli.out import note
from rollbook.config.settings import Settings
from rollbook.errors import ConfigError
from rollbook.policies.registry import contract_for, policy_kind, resolve_policy


async def resolve(found: Settings, batch_id: str, spec: BatchSpec) -> dict[str, Any]:
    """The spec with every default filled in, the digest of its contract, and the id of its agent contract.

    Both are null where something is not known on this machine; workers resolve it themselves.
    """
    resolved, unknown = await _resolved(found, spec)
    for what in unknown:
        note(f"note: {what}, so the contract's digest is not known here")
    contract = None if unknown else contract_for(spec, resolved)
    return {
        "batch_id": batch_id,
        "spec": spec.model_dump(mode="json"),
        "resolved": resolved.model_dump(mode="json"),
        "contract_digest": contract and contract.digest,
        "agent_contract_id": contract and contract.agent_contract_id,
    }


async def _resolved(found: Settings, spec: BatchSpec) -> tuple[Resolved, list[str]]:
    from rollbook.sandboxes.registry import provider_kind  # slow to import

    kind = provider_kind(spec.desktop.provider)
    unknown: list[str] = []
    meant: dict[str, Any] = {}
    if policy_kind(spec.policy.kind).reads_ledger:
        try:
            async with open_ledger(found) as ledger:
                meant = await resolve_policy(spec, ledger)
        except ConfigError as error:
            unknown.append(str(error))
    else:
        meant = await resolve_policy(spec, None)
    if kind.simulated_revision is not None:
        return Resolved(**meant, evaluator_revision=kind.simulated_revision, null_desktop=True), unknown
    revision = await _evaluator_revision()
    if revision is None:
        unknown.append("the evaluator is not installed here (`make setup`)")
    image = spec.desktop.image or kind.default_image(found, spec.desktop.variant).name
    return Resolved(**meant, desktop_image=image, evaluator_revision=revision), unknown


async def _evaluator_revision() -> str | None:
    from rollbook.config.osworld import evaluator_settings
    from rollbook.osworld.environment import ensure_environment

    if not (evaluator_settings().osworld_venv / "bin" / "python").exists():
        return None
    return (await ensure_environment(note)).revision
