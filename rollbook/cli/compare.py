"""Whether a spec may be launched under a batch id that exists: the ledger's own rules, asked before anything starts."""

from models.contract import RecordedContract, difference
from models.spec import BatchSpec
from rollbook.errors import InvalidInput, SpecConflict
from rollbook.ledger import Ledger
from rollbook.ledger.reader import BatchRow, Reader
from rollbook.ledger.task_selection import Member, Planned, compare, select_tasks
from rollbook.policies.registry import contract_for, policy_kind


async def require_same_contract(ledger: Ledger, known: BatchRow, spec: BatchSpec) -> None:
    """Raises SpecConflict with the difference when the batch exists with another contract.

    What only workers can resolve (image, evaluator, parser, recorded actions) is taken from the stored contract: they
    compare it themselves.
    """
    kind = policy_kind(spec.policy.kind)
    names = await kind.find_names(kind.read(spec.policy), ledger)
    resolved = RecordedContract.read(known.contract).all_resolved.model_copy(update=names)
    if lines := difference(known.contract, contract_for(spec, resolved).document):
        raise SpecConflict(
            f"batch {known.batch_id} exists with another contract: {'; '.join(lines)}. "
            "Submit the same spec to resume it, or choose a new batch id"
        )


async def require_same_selection(ledger: Ledger, reader: Reader, known: BatchRow, spec: BatchSpec) -> None:
    """Raises SpecConflict unless the spec selects what a *running* batch has planned."""
    task_set = await ledger.find_task_set(spec.task_set)
    chosen = select_tasks(await reader.members(task_set.set_digest), spec.tasks)
    before, now = (known.spec or {}).get("identity"), spec.model_dump(mode="json")["identity"]
    if not spec.extend and (lines := difference({"identity": before}, {"identity": now})):
        raise SpecConflict(f"batch {known.batch_id} is running with another identity: {'; '.join(lines)}")
    planned = await reader.planned(known.batch_id)
    compare(planned, chosen, spec.samples, extend=spec.extend)
    if spec.extend and _grows(planned, chosen, spec.samples):
        raise InvalidInput(
            f"batch {known.batch_id} is running; tasks and samples are added by a relaunch: "
            f"`rollbook stop {known.batch_id}`, then submit this spec again"
        )


def _grows(planned: list[Planned], chosen: list[Member], samples: int) -> bool:
    before = {row.task_id: row.samples for row in planned}
    return any(before.get(task.task_id, 0) < samples for task in chosen)


def operational_difference(known: BatchRow, spec: BatchSpec) -> list[str]:
    """What a running batch does not take over from a second submit: concurrency, attempts, note."""
    before = {name: getattr(known, name, None) for name in ("concurrency", "max_attempts")}
    now = {"concurrency": spec.concurrency, "max_attempts": spec.max_attempts}
    return difference(before, now)


def samples_stay(planned: list[Planned], spec: BatchSpec) -> str | None:
    """A warning where an extending spec asks for fewer samples than are planned (without `extend` it is refused)."""
    most = max((row.samples for row in planned), default=0)
    if not spec.extend or spec.samples >= most:
        return None
    return f"warning: samples: {most} are planned and stay planned, not {spec.samples}; samples may only grow"


def never_trained_on(spec: BatchSpec) -> str | None:
    """A warning where rollouts are meant for training and nothing of them can be trained on."""
    if spec.purpose != "train" or spec.identity is not None:
        return None
    return (
        "warning: purpose: train, but without `identity` nothing of this batch can be trained on "
        "(identity.sampling_event_id and source groups, given by the trainer)"
    )
