"""The ledger's part of an episode and of a batch's registration: claim, finalize, register."""

from collections.abc import Iterable

from activities.support import Activities, beating, implements, run_id, workflow_id
from models.activities import CLAIM, FINALIZE, REGISTER_BATCH
from models.batch import Inspect, RegisterBatch, RegisteredBatch
from models.contract import Contract, Resolved
from models.episode import Claimed, ClaimRequest, EpisodePlan, Finalized, FinalizeRequest
from models.identity import batch_of
from models.outcome import Infra
from models.spec import BatchSpec
from models.task import Task, needs_web
from rollbook.config.settings import Settings
from rollbook.errors import InvalidInput
from rollbook.ledger.records import Claim, Registered
from rollbook.ledger.sanitize import require_no_secrets
from rollbook.ledger.task_selection import Member, select_tasks
from rollbook.osworld.needs import missing_needs, read_manifest
from rollbook.policies.registry import contract_for, probe_policy, resolve_policy
from rollbook.redaction import redact_head
from rollbook.sandboxes.provider import ProviderKind
from rollbook.sandboxes.registry import provider_kind
from rollbook.worker.services import Services

START_SLACK_S = 120.0
"""Added to a desktop's ready and cleanup timeouts, so that a start ends by its own limits before Temporal's."""


class LedgerActivities:
    """Claim and finalize attempts, register batches."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.claim, self.finalize, self.register_batch]

    @implements(CLAIM)
    async def claim(self, request: ClaimRequest) -> Claimed:
        """Claim attempt `n` of this run; a repeat gets the same attempt."""
        claim = await self._services.ledger.claim(request.rollout_key, run_id(), workflow_id(), request.n)
        if claim.status != "claimed":
            return Claimed(status=claim.status)
        return Claimed(status="claimed", attempt_index=claim.attempt_index, run_id=run_id(), plan=self._plan(claim))

    @implements(FINALIZE)
    async def finalize(self, request: FinalizeRequest) -> Finalized:
        """End an attempt: outcome, admission and selection in one transaction."""
        ledger = self._services.ledger
        finalized = await ledger.finalize(request, run_id())
        if request.refused and request.facts.infrastructure_failure_reason is Infra.MODEL_CALL_FAILED:
            await ledger.stop_when_refused(batch_of(request.attempt.rollout_key), request.detail)
        self._services.wake_up.notify()
        return finalized

    @implements(REGISTER_BATCH)
    async def register_batch(self, request: RegisterBatch) -> RegisteredBatch:
        """Plan every rollout of the batch as a row; a relaunch finds them.

        The first call of a launch may answer with the image to inspect; nothing is registered then.
        """
        require_no_secrets(request.spec.model_dump(mode="json"))
        async with beating():
            # A launch that was registered before keeps what its names meant then.
            done = await self._services.ledger.registered_launch(request)
            if done is None:
                kind = self._provider_kind(request.spec)
                if request.image is None and (inspect := self._inspect(request, kind)) is not None:
                    return self._answer(Registered(request.batch_id, 0, 0, 0), inspect)
                done = await self._register(request, kind)
        return self._answer(done)

    async def _register(self, request: RegisterBatch, kind: ProviderKind) -> Registered:
        spec = request.spec
        resolved = await self._resolve(request, kind)
        contract_for(spec, resolved)  # refuses an agent contract id that differs from the spec's
        tasks = await self._chosen(spec)
        unrunnable, notice = await self._unrunnable(resolved, tasks)
        notice = "; ".join(filter(None, (notice, await probe_policy(spec, self._services))))
        _require_web(spec, [task for task in tasks if task.task_id not in unrunnable])
        return await self._services.ledger.register_batch(
            request,
            deployment_id=self._services.settings.deployment_id,
            resolved=resolved,
            unrunnable=unrunnable,
            notice=notice,
        )

    def _answer(self, done: Registered, inspect: Inspect | None = None) -> RegisteredBatch:
        settings = self._services.settings
        return RegisteredBatch(
            batch_id=done.batch_id,
            planned=done.planned,
            added=done.added,
            final=done.final,
            slice_s=settings.pump_slice_s,
            slices_per_run=settings.pump_slices_per_run,
            heartbeat_s=settings.heartbeat_s,
            notice=done.notice,
            inspect=inspect,
        )

    def _provider_kind(self, spec: BatchSpec) -> ProviderKind:
        kind = provider_kind(spec.desktop.provider)
        if kind.name not in self._services.providers:
            raise InvalidInput(
                f"desktop.provider: no worker here offers {kind.name!r}; there is "
                f"{', '.join(sorted(self._services.providers))}{f' ({kind.enable_hint})' if kind.enable_hint else ''}"
            )
        return kind

    def _inspect(self, request: RegisterBatch, kind: ProviderKind) -> Inspect | None:
        """The image and evaluator that must exist before anything is planned: every rollout would wait in vain."""
        settings, desktop = self._services.settings, request.spec.desktop
        if kind.simulated_revision is not None:
            return None
        image, field = desktop.image, "desktop.image"
        if image is None:
            image, setting = kind.default_image(settings, desktop.variant)
            field = setting or kind.default_image_source
        return Inspect(
            batch_id=request.batch_id,
            provider=kind.name,
            image=image,
            field=field,
            desktop_queue=settings.task_queue_desktop,
            osworld_queue=settings.task_queue_osworld,
        )

    async def _resolve(self, request: RegisterBatch, kind: ProviderKind) -> Resolved:
        """Resolve the names in the spec."""
        spec, image = request.spec, request.image
        endpoints = self._services.models.names
        of_policy = await resolve_policy(spec, self._services.ledger, endpoints=endpoints, register=True)
        if kind.simulated_revision is not None:
            return Resolved(**of_policy, evaluator_revision=kind.simulated_revision, null_desktop=True)
        return Resolved(
            **of_policy,
            desktop_image=image and image.image,
            desktop_digest=image and image.digest,
            evaluator_revision=request.evaluator and request.evaluator.revision,
        )

    async def _unrunnable(self, resolved: Resolved, tasks: list[Task]) -> tuple[dict[str, str], str]:
        """Tasks that would end without a score, or with a 0 for every policy, with the reasons; and a notice."""
        if resolved.null_desktop:  # its scores mean nothing anyway
            return {}, ""
        reasons = {task.task_id: f"the evaluator: {task.unscorable}" for task in tasks if task.unscorable}
        image, digest = resolved.desktop_image or "", resolved.desktop_digest
        manifest = read_manifest(None if digest is None else await self._services.ledger.image_manifest(digest))
        if manifest is None:
            return reasons, f"image {image} has no manifest: it is not known whether it has what the tasks need"
        for task in tasks:
            if lacks := missing_needs(task.document, manifest):
                reasons.setdefault(task.task_id, f"the image lacks {', '.join(lacks)}")
        return reasons, ""

    async def _chosen(self, spec: BatchSpec) -> list[Task]:
        """The tasks that the spec selects, with their documents."""
        ledger = self._services.ledger
        registered = await ledger.find_task_set(spec.task_set)
        tasks = await ledger.tasks_of(registered.set_digest)
        chosen = {member.task_id for member in select_tasks((_member(task) for task in tasks), spec.tasks)}
        return [task for task in tasks if task.task_id in chosen]

    def _plan(self, claim: Claim) -> EpisodePlan:
        assert claim.contract is not None, "a claimed attempt has its contract"
        settings, limits = self._services.settings, claim.contract.limits
        return EpisodePlan(
            batch_id=claim.batch_id,
            task_id=claim.task_id,
            domain=claim.domain,
            sample=claim.sample,
            instruction=redact_head(str(claim.document["instruction"]), 500),
            max_steps=limits.max_steps,
            deadline_s=limits.deadline_s,
            model_timeout_s=_decide_timeout_s(claim.contract),
            action_timeout_s=limits.action_timeout_s,
            setup_timeout_s=limits.setup_timeout_s,
            evaluate_timeout_s=limits.evaluate_timeout_s,
            start_timeout_s=_start_timeout_s(settings),
            settle_s=claim.contract.settle.after_action_s,
            policy=claim.policy,
            artifact_url=self._services.artifact_base_url,
            desktop_queue=settings.task_queue_desktop,
            osworld_queue=settings.task_queue_osworld,
            heartbeat_s=settings.heartbeat_s,
            lease_s=settings.lease_s,
        )


def _require_web(spec: BatchSpec, tasks: Iterable[Task]) -> None:
    """Refuse web tasks on desktops without internet: they would all score 0, and the 0 would look valid."""
    if spec.desktop.egress != "none":
        return
    web = [f"{task.task_id} ({why})" for task in tasks if (why := needs_web(task.document))]
    if web:
        more = f" and {len(web) - 5} more" if len(web) > 5 else ""
        raise InvalidInput(
            f"desktop.egress: 'none', but {len(web)} of the chosen tasks need the internet: "
            f"{', '.join(web[:5])}{more}; use 'auto' or 'open', or leave them out with tasks.exclude_ids"
        )


def _member(task: Task) -> Member:
    return Member(domain=task.domain, task_id=task.task_id, task_digest=task.task_digest)


def _decide_timeout_s(contract: Contract) -> float:
    """Longest time of all calls of one step, seconds; each call has its own limit."""
    options = contract.policy.options or {}
    return contract.limits.model_timeout_s * int(options.get("parse_retries", 1))


def _start_timeout_s(settings: Settings) -> float:
    return settings.ready_timeout_s + settings.cleanup_timeout_s + START_SLACK_S
