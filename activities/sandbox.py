"""Desktops: start, renew the lease, stop. The ledger's lease row is written before anything is created."""

import asyncio
import shutil

from temporalio import activity

from activities.support import Activities, beating, implements, is_current_try, run_id
from models.activities import EXAMINE_DESKTOP, INSPECT_IMAGE, RENEW_LEASE, START_SANDBOX, STOP_SANDBOX
from models.batch import ImageFacts, Inspect
from models.episode import AttemptRef, DesktopRef, Examined, ExamineRequest
from models.outcome import Cause
from models.task import needs_web
from rollbook.errors import Fenced, InvalidInput, SandboxLost, SandboxStartFailed
from rollbook.ledger.records import AttemptContext, Examination
from rollbook.redaction import redact_head
from rollbook.sandboxes.pressure import read_pressure, require_calm
from rollbook.sandboxes.provider import SandboxProvider, SandboxSpec, remove_sandbox
from rollbook.sandboxes.registry import provider_kind
from rollbook.worker.services import Services


class SandboxActivities:
    """Start, renew, examine and stop the desktop of an attempt."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.inspect_image, self.start_sandbox, self.renew_lease, self.examine_desktop, self.stop_sandbox]

    @implements(INSPECT_IMAGE)
    async def inspect_image(self, request: Inspect) -> ImageFacts:
        """Find the image of a batch's desktops, fetching it if need be, and record its manifest in the ledger."""
        async with beating() as note:
            note(f"looking for the image {request.image}")
            try:
                image = await self._services.provider(request.provider).inspect_image(request.image)
            except InvalidInput as error:
                raise InvalidInput(f"{request.field}: {error}") from error
        if image.digest is not None:
            await self._services.ledger.record_image(image.digest, request.provider, image.name, image.manifest)
        return ImageFacts(image=image.name, digest=image.digest)

    @implements(START_SANDBOX)
    async def start_sandbox(self, attempt: AttemptRef) -> DesktopRef:
        """Adopt or create the desktop of this attempt, and wait until it shows a screen."""
        services = self._services
        context = await services.ledger.attempt_context(attempt, run_id())
        provider = services.provider(context.contract.desktop.provider)
        lease_s = services.settings.lease_s
        lease = await services.ledger.sandbox_of(attempt)
        spec = self._spec(context, provider)
        asked_at = await services.ledger.sandbox_intent(
            attempt,
            run_id(),
            sandbox_key=spec.key,
            deployment_id=spec.deployment,
            provider=provider.name,
            lease_s=lease_s,
        )
        if lease is None or lease.state != "running":  # one that runs already adds no load by being adopted
            require_calm(services.settings.max_pressure, read_pressure())
        async with beating() as note:
            handle = await provider.create(
                spec.model_copy(update={"asked_at": asked_at}), note, lambda: self._ours(attempt)
            )
            desktop = DesktopRef(
                provider=provider.name,
                sandbox_id=handle.sandbox_id,
                sandbox_key=handle.key,
                nonce=await provider.nonce(handle.sandbox_id),
                server=await provider.server_process(handle.sandbox_id),
                isolation=handle.isolation,
                image_digest=handle.image_digest,
                view_url=await provider.view_url(handle.sandbox_id),
            )
        registered = context.contract.resolved.desktop_digest
        if registered and desktop.image_digest != registered:
            # nothing of the task is on it yet; a provider that starts another image than it was given is at fault
            if lease := await services.ledger.sandbox_of(attempt):
                await remove_sandbox(provider, lease)
            raise SandboxStartFailed(
                f"the desktop is made from {desktop.image_digest or 'an unknown image'}, not {registered}"
            )
        try:
            await services.ledger.sandbox_started(attempt, run_id(), desktop, lease_s=lease_s)
        except (Fenced, SandboxLost):
            await self._remove_late(attempt, desktop)
            raise
        return desktop

    @implements(RENEW_LEASE)
    async def renew_lease(self, attempt: AttemptRef) -> None:
        """Renew the lease, so that the desktop of a frozen episode is not removed."""
        await self._services.ledger.sandbox_renew(attempt, run_id(), lease_s=self._services.settings.lease_s)

    @implements(EXAMINE_DESKTOP)
    async def examine_desktop(self, request: ExamineRequest) -> Examined:
        """Return the committed examination of the desktop, or make one: the guest is not asked, its provider is."""
        ledger, desktop = self._services.ledger, request.desktop
        stored = await ledger.examination(request.attempt)
        if stored is None:
            provider = self._services.provider(desktop.provider)
            async with beating() as note:
                note("examining the desktop")
                # the cause first: what is gone can still be asked for the reason, not for its files
                cause = await provider.cause(desktop.sandbox_id, desktop.nonce) if request.failed else None
                seen = await provider.examine(desktop.sandbox_id, desktop.server)
            stored = await ledger.commit_examination(
                request.attempt,
                run_id(),
                Examination(
                    cause=cause and cause.kind,
                    cause_detail=redact_head(cause.detail, 2000) if cause else "",
                    tampered=seen.tampered,
                    detail=redact_head(seen.detail, 2000),
                    evidence=seen.evidence or None,
                ),
            )
        cause = Cause(kind=stored.cause, detail=redact_head(stored.cause_detail, 500)) if stored.cause else None
        return Examined(cause=cause, tampered=stored.tampered, detail=redact_head(stored.detail, 500))

    @implements(STOP_SANDBOX)
    async def stop_sandbox(self, attempt: AttemptRef) -> None:
        """Remove everything with this attempt's key. Not fenced: an old attempt may remove its own desktop."""
        services = self._services
        lease = await services.ledger.sandbox_of(attempt)
        if lease is None:
            return
        async with beating():
            await remove_sandbox(services.provider(lease.provider), lease)
            await asyncio.to_thread(shutil.rmtree, services.work_dir(lease.sandbox_key), ignore_errors=True)
        await services.ledger.sandbox_stopped(lease.sandbox_key, reason="the attempt ended")
        services.wake_up.notify()

    async def _ours(self, attempt: AttemptRef) -> bool:
        """Return whether a failed start may remove the desktop: not when the next try of the start will adopt it.

        A desktop that remains is not lost: its lease names it for the end of the attempt and for the Janitor.
        """
        details = activity.cancellation_details()
        if details is not None and not details.cancel_requested:
            return False  # timed out, or its worker shuts down: Temporal tries again and adopts the desktop
        if not await is_current_try():
            return False  # this try stalled: the next one may wait for the same desktop before the ledger has it
        lease = await self._services.ledger.sandbox_of(attempt)
        return lease is None or lease.state != "running"

    async def _remove_late(self, attempt: AttemptRef, desktop: DesktopRef) -> None:
        """Stop a desktop whose attempt ended while it started: no other step would stop it."""
        lease = await self._services.ledger.sandbox_of(attempt)
        if lease is not None and (lease.state == "stopped" or not lease.attempt_open):
            await self._services.provider(desktop.provider).stop(desktop.sandbox_id)

    def _spec(self, context: AttemptContext, provider: SandboxProvider) -> SandboxSpec:
        settings = self._services.settings
        desktop = context.contract.desktop
        image = context.contract.resolved
        field = "desktop.image" if desktop.image else provider_kind(provider.name).default_image_source
        opened = desktop.egress == "open" or (desktop.egress == "auto" and needs_web(context.task))
        return SandboxSpec(
            deployment=settings.deployment_id,
            rollout=context.rollout_key,
            attempt=context.attempt_index,
            execution=str(context.execution_id),
            batch=context.batch_id,
            stack=settings.stack_id,
            image=image.desktop_digest or image.desktop_image or "none",
            image_field=f"{field} ({image.desktop_image})" if image.desktop_digest else field,
            screen=desktop.screen,
            limits=desktop.limits,
            egress="open" if opened else "none",
            env=self._environment(),
            vnc_port=provider.vnc_port,
            ready_timeout_s=settings.ready_timeout_s,
            cleanup_timeout_s=settings.cleanup_timeout_s,
        )

    def _environment(self) -> dict[str, str]:
        password = self._services.settings.vnc_password
        return {} if password is None else {"VNC_PASSWORD": password.get_secret_value()}
