"""`submit`: one spec, one batch. Repeating it is harmless."""

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from temporalio.client import Client

from models.batch import BatchResult
from models.contract import RecordedContract, Resolved, difference
from models.identity import BATCH_ID
from models.spec import BatchSpec, read_spec
from rollbook.cli.batches import Launch, as_input, await_registration, life_of, rerun_masked, result_of, start_batch
from rollbook.cli.command import FAILURE, OK, AsJson, Failed, finish, name_of, read_json
from rollbook.cli.connections import Links, connect, open_ledger, open_reader, register_profiles, settings
from rollbook.cli.out import note, print_json, say, several
from rollbook.cli.status import MinAdmitted, follow, read_floor
from rollbook.config.settings import Settings
from rollbook.errors import ConfigError, InvalidInput, SpecConflict
from rollbook.ledger import Ledger
from rollbook.ledger.reader import BatchRow, Reader
from rollbook.ledger.sanitize import require_no_secrets
from rollbook.ledger.task_selection import Member, Planned, compare, select_tasks
from rollbook.policies.registry import contract_for, policy_kind, resolve_policy
from rollbook.temporal.namespace import require_same_server, server_of

REGISTRATION_S = 60.0
"""Time that `submit` waits for a worker to register the batch."""

ALREADY = "already complete"
"""The workflow's word for a launch that found nothing to run."""

Outcome = dict[str, Any]


def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The batch spec, one JSON object; - for standard input.")],
    batch_id: Annotated[
        str | None, typer.Option("--batch-id", help="Default: the file's name and the time. Use your own to resume.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch until every rollout is final.")] = False,
    min_admitted: MinAdmitted = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved spec and its digest, start nothing.")
    ] = (False),
    as_json: AsJson = False,
) -> None:
    """Start a batch. The same spec under the same id resumes it; another contract is refused with the difference."""

    async def work() -> int:
        floor = read_floor(min_admitted)
        if min_admitted is not None and not watch:
            raise InvalidInput("--min-admitted: it needs --watch")
        spec = load_spec(file)
        chosen = default_batch_id(file) if batch_id is None else read_batch_id(batch_id)
        config = settings()
        if dry_run:
            print_json(await resolve(config, chosen, spec))
            return 0
        if warning := never_trained_on(spec):
            note(warning)
        done = await launch(config, chosen, spec)
        if not as_json:
            tell(done)
        code = OK
        known = ("complete", ALREADY)
        if watch and (done["state"] in ("started", "running") or (min_admitted and done["state"] in known)):
            ended = await follow(config, chosen, quiet=as_json)
            code = ended.code_with(floor)
            done |= ended.as_json()
        elif watch and done["state"] not in known:
            code = FAILURE
        if as_json:
            print_json(done)
        return code

    finish(work())


def load_spec(file: str) -> BatchSpec:
    """Read and validate a spec; raises InvalidInput that names the fields."""
    from rollbook.sandboxes.registry import provider_kind  # slow to import

    raw = read_json(file)
    try:
        spec = read_spec(raw)
        provider_kind(spec.desktop.provider)
    except (ValueError, InvalidInput) as error:
        raise InvalidInput(f"{name_of(file)}: {error}") from error
    return spec


def default_batch_id(file: str) -> str:
    """`<name of the file>-<date>-<time>`, UTC."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(file).stem).strip("-._") if file != "-" else "batch"
    return f"{stem or 'batch'}-{datetime.now(UTC):%m%d-%H%M%S}"


def read_batch_id(text: str) -> str:
    """A batch id that people chose; raises InvalidInput."""
    if not BATCH_ID.match(text) or len(text) > 128:
        raise InvalidInput(
            f"--batch-id: {text!r}: letters, digits, '_', '.' and '-' only, at most 128, the first a letter or digit"
        )
    return text


async def launch(config: Settings, batch_id: str, spec: BatchSpec) -> Outcome:
    """Start the batch, or find that it runs or is complete; raises InvalidInput or SpecConflict with the reason."""
    register_profiles(config)
    require_no_secrets(as_input(spec))
    client = await connect(config)
    async with open_ledger(config) as ledger, open_reader(config) as reader:
        place = (config.deployment_id, client.namespace)
        require_same_server(*place, await ledger.temporal_server(*place), await server_of(client))
        life = await life_of(client, batch_id)
        if known := await reader.known_batch(batch_id):
            await require_same_contract(ledger, known, spec)
            if warning := samples_stay(await reader.planned(batch_id), spec):
                note(warning)
            if life == "running":
                return await _running(ledger, reader, config, batch_id, spec)
        started = await start_batch(client, batch_id, as_input(spec), config.task_queue_orchestrate)
        if started.already_running:
            return await _running(ledger, reader, config, batch_id, spec)
        answer = await await_registration(client, reader, started, REGISTRATION_S)
        return await _outcome(client, reader, config, started, answer)


async def _running(ledger: Ledger, reader: Reader, config: Settings, batch_id: str, spec: BatchSpec) -> Outcome:
    known = await reader.known_batch(batch_id)
    if known is None:
        raise Failed(
            f"workflow {batch_id} is running, but the ledger has no such batch (yet): `rollbook status {batch_id}`"
        )
    await require_same_contract(ledger, known, spec)
    await require_same_selection(ledger, reader, known, spec)
    for line in operational_difference(known, spec):
        note(
            f"warning: {batch_id} goes on with its own setting ({line}); `rollbook set-concurrency` changes concurrency"
        )
    return await _report(reader, config, batch_id, "running")


async def _begun(client: Client, reader: Reader, started: Launch) -> str:
    """`started`, or the workflow's own word when it has nothing to do and ends at once."""
    counts = await reader.counts(started.batch_id)
    if counts.waiting or counts.running:
        return "started"
    with suppress(TimeoutError):
        async with asyncio.timeout(REGISTRATION_S):
            return (await result_of(client, started.batch_id, started.run_id)).state
    return "started"


async def _outcome(
    client: Client, reader: Reader, config: Settings, started: Launch, answer: BatchResult | str
) -> Outcome:
    if isinstance(answer, BatchResult):
        return await _report(reader, config, started.batch_id, answer.state)
    if answer == "registered":
        return await _report(reader, config, started.batch_id, await _begun(client, reader, started))
    raise Failed(
        f"{started.batch_id} was started, but no worker took it up within {REGISTRATION_S:.0f} s; it will run as soon "
        f"as one polls {config.task_queue_orchestrate!r} (`rollbook ps`)"
    )


async def _report(reader: Reader, config: Settings, batch_id: str, state: str) -> Outcome:
    counts = await reader.counts(batch_id)
    if state == ALREADY and (await reader.batch(batch_id)).cancelling:
        state = "cancelled"  # nothing was left to run because it was cancelled: that is not complete
    return {"batch_id": batch_id, "state": state, **counts.model_dump(), "ui": Links.of(config).workflow(batch_id)}


def tell(done: Outcome) -> None:
    """Print the result of a launch."""
    batch_id, planned = done["batch_id"], done["planned"]
    final = done["admitted"] + done["masked"]
    words = {
        "started": f"started: {several(planned, 'rollout')} planned, {final} final",
        "running": f"is already running: {several(planned, 'rollout')} planned, {final} final",
        ALREADY: f"already complete: {planned} of {planned} rollouts final",
        "cancelled": f"is cancelled: {planned} of {planned} rollouts final, {done['masked']} masked; nothing to run",
    }
    say(f"{batch_id} {words.get(done['state'], done['state'])}")
    if done["ui"]:
        say(f"  {done['ui']}")
    if done["state"] in ("started", "running"):
        say(f"  rollbook watch {batch_id}")
    if done["state"] == "cancelled":
        say(f"  {rerun_masked(batch_id)}")


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
    """Values that a running batch does not adopt from a second submit: concurrency, attempts, note."""
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


async def resolve(config: Settings, batch_id: str, spec: BatchSpec) -> dict[str, Any]:
    """The spec with every default filled in, the digest of its contract, and the id of its agent contract.

    Both are null where something is not known on this machine; workers resolve it themselves.
    """
    resolved, unknown = await _resolved(config, spec)
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


async def _resolved(config: Settings, spec: BatchSpec) -> tuple[Resolved, list[str]]:
    from rollbook.sandboxes.registry import provider_kind  # slow to import

    kind = provider_kind(spec.desktop.provider)
    unknown: list[str] = []
    meant: dict[str, Any] = {}
    if policy_kind(spec.policy.kind).reads_ledger:
        try:
            async with open_ledger(config) as ledger:
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
    image = spec.desktop.image or kind.default_image(config, spec.desktop.variant).name
    return Resolved(**meant, desktop_image=image, evaluator_revision=revision), unknown


async def _evaluator_revision() -> str | None:
    from rollbook.config.osworld import evaluator_settings
    from rollbook.osworld.environment import ensure_environment

    if not (evaluator_settings().osworld_venv / "bin" / "python").exists():
        return None
    return (await ensure_environment(note)).revision
