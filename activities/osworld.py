"""Setup and scoring by OSWorld's own code: prepare_task, run_postconfig, evaluate."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TypeVar

from temporalio import activity

from activities.support import Activities, beating, driving, implements, run_id
from models.activities import EVALUATE, INSPECT_EVALUATOR, PREPARE_TASK, RUN_POSTCONFIG
from models.batch import EvaluatorFacts, Inspect
from models.episode import AttemptRef, DesktopRef, DesktopRequest, Evaluated, EvaluateRequest, PhaseDone
from models.evidence import ArtifactRef
from models.outcome import Infra
from rollbook.desktop.driver import Driver, Files, Job, Note, PhaseReport, Scored
from rollbook.errors import ConfigError, InfraError, SandboxLost
from rollbook.ledger.records import AttemptContext, Evaluation, Phase
from rollbook.redaction import redact_head
from rollbook.sandboxes.pressure import read_pressure
from rollbook.workclock import WorkClock
from rollbook.worker.services import Services

T = TypeVar("T")
TEXT = "text/plain; charset=utf-8"
log = logging.getLogger(__name__)


class OsworldActivities:
    """Run the canonical setup and evaluator against the desktop of an attempt."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.inspect_evaluator, self.prepare_task, self.run_postconfig, self.evaluate]

    @implements(INSPECT_EVALUATOR)
    async def inspect_evaluator(self, request: Inspect) -> EvaluatorFacts:
        """Return the revision of this worker's evaluator, which becomes the contract's."""
        evaluator = self._services.evaluator
        if evaluator is None:
            raise ConfigError("evaluator: this worker has none; run `make setup`, or a worker with --role osworld")
        return EvaluatorFacts(revision=evaluator.revision)

    @implements(PREPARE_TASK)
    async def prepare_task(self, call: DesktopRequest) -> PhaseDone:
        """Set the task up, once per desktop; then let the desktop settle."""
        context = await self._context(call.attempt)
        limits, settle = context.contract.limits, context.contract.settle
        self._check_evaluator(context)
        job = self._job(context, call.desktop, limits.setup_timeout_s)
        async with WorkClock() as clock:
            files = await self._phase(call, job, lambda driver, note: driver.prepare(job, note, self._keep))
            await _rest(settle.after_setup_s)
        return PhaseDone(files=files, worked_s=clock.seconds)

    @implements(RUN_POSTCONFIG)
    async def run_postconfig(self, call: DesktopRequest) -> PhaseDone:
        """Let the desktop settle, then run the evaluator's postconfig, once per desktop, and take a screenshot."""
        context = await self._context(call.attempt)
        self._check_evaluator(context)
        await _rest(context.contract.settle.before_evaluation_s)
        job = self._job(context, call.desktop, context.contract.limits.evaluate_timeout_s)
        files = await self._phase(call, job, lambda driver, note: self._postconfig(job, driver, note))
        return PhaseDone(files=files)

    @implements(EVALUATE)
    async def evaluate(self, request: EvaluateRequest) -> Evaluated:
        """Return the committed evaluation of the attempt, or make one. Repeats read the one committed first."""
        ledger = self._services.ledger
        context = await self._context(request.attempt)
        stored = await ledger.evaluation(request.attempt)
        if stored is None:
            self._check_evaluator(context)
            files = {name: await self._services.artifacts.get(ref.sha256) for name, ref in request.files.items()}
            job = self._job(context, request.desktop, context.contract.limits.evaluate_timeout_s, files)
            scored = await self._score(request, job)
            log = await self._services.artifacts.put(scored.log, TEXT)
            stored = await ledger.commit_evaluation(request.attempt, run_id(), _row(scored, context.task_digest, log))
        return Evaluated(
            completed=stored.completed,
            score=stored.score,
            guest_failed=stored.guest_failed,
            reason=stored.reason,
            detail="" if stored.completed else redact_head(stored.detail, 2000),
        )

    async def _score(self, request: EvaluateRequest, job: Job) -> Scored:
        try:
            return await self._phase(
                request, job, lambda driver, note: driver.evaluate(job, request.terminal_action, note)
            )
        except SandboxLost as error:
            return Scored(None, reason=Infra.SANDBOX_LOST, guest_failed=True, detail=str(error))

    async def _postconfig(self, job: Job, driver: Driver, note: Note) -> Files:
        started_at = datetime.now(UTC)
        files = await driver.postconfig(job, note, self._keep)
        if job.contract.resolved.null_desktop:
            return files
        if not job.reports:  # without steps nothing ran; its row holds the screenshot all the same
            job.reports.append(PhaseReport("postconfig", True, False, "", {}, b"", started_at, 0.0))
        try:  # the one picture of what the evaluator is about to look at
            seen = await driver.observe(screen=job.contract.desktop.screen, accessibility_tree=False, terminal=False)
        except InfraError as error:  # an agent that killed its display must not get a mask for that
            log.warning("no screenshot after postconfig: %s", error)
            return files
        job.reports[-1] = replace(job.reports[-1], screenshot=seen.screenshot)
        return files

    async def _phase(self, call: DesktopRequest, job: Job, work: Callable[[Driver, Note], Awaitable[T]]) -> T:
        async with driving(self._services, call) as driver, beating() as note:
            try:
                return await work(driver, note)
            finally:
                for report in job.reports:
                    await self._record(call.attempt, job.token, report)

    async def _record(self, attempt: AttemptRef, token: str, report: PhaseReport) -> None:
        """Keep the evidence of a phase. Its loss changes nothing: repeating a phase for it would."""
        put = self._services.artifacts.put
        try:
            phase = Phase(
                phase=report.phase,
                token=token,
                ok=report.ok,
                guest_failed=report.guest_failed,
                detail=redact_head(report.detail, 2000),
                exchanges=report.exchanges,
                pressure=read_pressure(),
                log=await put(report.log, TEXT) if report.log else None,
                screenshot=await put(report.screenshot, "image/png") if report.screenshot else None,
                started_at=report.started_at,
                duration_s=report.duration_s,
            )
            await self._services.ledger.record_phase(attempt, run_id(), phase)
        except Exception as error:
            log.warning("the record of %s of %s was not kept: %s", report.phase, attempt.rollout_key, error)

    def _check_evaluator(self, context: AttemptContext) -> None:
        """Refuse work under another evaluator than the contract's; a worker that has that one will take it."""
        evaluator, revision = self._services.evaluator, context.contract.resolved.evaluator_revision
        if context.contract.resolved.null_desktop or evaluator is None or evaluator.revision == revision:
            return
        raise ConfigError(
            f"evaluator: this worker has revision {evaluator.revision}, the batch was registered with {revision}; "
            "run a worker that has it"
        )

    async def _context(self, attempt: AttemptRef) -> AttemptContext:
        return await self._services.ledger.attempt_context(attempt, run_id())

    def _job(
        self,
        context: AttemptContext,
        desktop: DesktopRef,
        timeout_s: float,
        files: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Job:
        """A job in a directory of its own."""
        # OSWorld takes every file in its cache for complete, also half of a gold file that a killed try left, and a
        # stalled try may still be writing: no two tries may share a directory
        token = uuid.uuid4().hex
        return Job(
            task=context.task,
            contract=context.contract,
            work_dir=self._services.work_dir(desktop.sandbox_key) / token[:12],
            timeout_s=timeout_s,
            token=token,
            first_try=activity.info().attempt == 1,
            files=files,
        )

    async def _keep(self, files: dict[str, bytes]) -> Files:
        """Store the files that a phase left for the evaluator, so that a worker on another host has them too."""
        refs = {name: await self._services.artifacts.put(data, TEXT) for name, data in files.items()}
        await self._services.ledger.record_artifacts(refs.values())
        return refs


def _row(scored: Scored, task_digest: str, log: ArtifactRef | None) -> Evaluation:
    return Evaluation(
        completed=scored.score is not None,
        score=scored.score,
        score_type=scored.score_type or None,
        reason=scored.reason,
        guest_failed=scored.guest_failed,
        detail=redact_head(scored.detail, 20_000).replace("\x00", ""),
        evaluator_revision=scored.evaluator_revision or None,
        numpy_version=scored.numpy or None,
        task_digest=task_digest,
        isolation=scored.isolation,
        exchanges=scored.exchanges,
        log=log,
        duration_s=scored.duration_s,
    )


async def _rest(seconds: float) -> None:
    """Leave the desktop alone, heartbeating."""
    if seconds > 0:
        async with beating():
            await asyncio.sleep(seconds)
