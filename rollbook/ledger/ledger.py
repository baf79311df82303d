"""The ledger as the activities, the CLI and the Janitor see it: one object, every method one transaction."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

from sqlalchemy.ext.asyncio import AsyncEngine

from models.admission import AdmissionDecision
from models.batch import Control, Counts, RegisterBatch, Resolved
from models.episode import AttemptRef, Desk, Finalized, FinalizeRequest, Observation
from models.evidence import ArtifactRef
from models.task import Task
from rollbook.errors import LedgerError
from rollbook.ledger import audit as auditing
from rollbook.ledger import (
    catalog,
    claim,
    close,
    commits,
    control,
    decisions,
    fence,
    finalize,
    imports,
    pump,
    reconcile,
    redecide,
    register,
    rerun,
    sandboxes,
    steps,
)
from rollbook.ledger import recorded as recording
from rollbook.ledger.engine import create_engine, reading, transaction
from rollbook.ledger.records import (
    AttemptContext,
    AuditReport,
    BatchControl,
    Claim,
    Evaluation,
    Lease,
    ModelCall,
    Registered,
    RegisteredSet,
    StartRow,
    StepSoFar,
    StoredCall,
    StoredEvaluation,
    StoredTurn,
    Suspect,
)


class Ledger:
    """Holds the connection pool. Methods raise errors of `rollbook.errors`, or OperationalError when Postgres is away.

    `attempt` and `run_id` together are the fence: writes of an episode raise Fenced when another attempt is current.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._contexts = steps.Contexts()

    @classmethod
    def connect(cls, url: str, pool_size: int = 10, role: str | None = None) -> Self:
        """A ledger at `url` (`postgresql+psycopg://…`); connects on first use. `role`: work as that database role."""
        return cls(create_engine(url, pool_size=pool_size, role=role))

    async def aclose(self) -> None:
        """Close every connection."""
        await self.engine.dispose()

    # --- catalog --------------------------------------------------------------------------------------------

    async def register_task_set(self, name: str, tasks: list[Task]) -> RegisteredSet:
        """Register tasks under a name; the newest registration of a name wins."""
        async with transaction(self.engine) as conn:
            return await catalog.register_task_set(conn, name, tasks)

    async def find_task_set(self, ref: str) -> RegisteredSet:
        """The set that `name` or `name@digest` means now; raises InvalidInput that says what there is."""
        async with reading(self.engine) as conn:
            return await catalog.find_task_set(conn, ref)

    async def tasks_of(self, set_digest: str, ids: Iterable[str] | None = None) -> list[Task]:
        """Tasks of a set with their documents, by task id."""
        async with reading(self.engine) as conn:
            return await catalog.tasks_of(conn, set_digest, ids)

    async def register_script(self, name: str, body: dict[str, Any]) -> str:
        """Register a script file under a name; its digest."""
        async with transaction(self.engine) as conn:
            return await catalog.register_script(conn, name, body)

    async def find_script(self, ref: str) -> str:
        """Digest of the script that `name` or `name@digest` means now."""
        async with reading(self.engine) as conn:
            return await catalog.find_script(conn, ref)

    async def script_body(self, script_digest: str) -> dict[str, Any]:
        """The script file with this digest."""
        async with reading(self.engine) as conn:
            return await catalog.script_body(conn, script_digest)

    async def record_artifacts(self, refs: Iterable[ArtifactRef | None]) -> None:
        """Note bytes that the artifact store holds."""
        async with transaction(self.engine) as conn:
            await catalog.record_artifacts(conn, refs)

    # --- batches --------------------------------------------------------------------------------------------

    async def register_batch(self, request: RegisterBatch, *, deployment_id: str, resolved: Resolved) -> Registered:
        """Plan every rollout of a batch, or find it planned; raises InvalidInput or SpecConflict."""
        async with transaction(self.engine) as conn:
            return await register.register_batch(conn, request, deployment_id=deployment_id, resolved=resolved)

    async def launched_spec(self, batch_id: str) -> dict[str, Any]:
        """The spec of the newest launch: what a contract leaves out, such as the endpoint."""
        async with reading(self.engine) as conn:
            return await recording.launched_spec(conn, batch_id)

    async def set_control(self, change: Control) -> None:
        """Write a control change."""
        async with transaction(self.engine) as conn:
            await control.set_control(conn, change)

    async def mark_cancelling(self, batch_id: str, reason: str = "", launch_id: str = "") -> None:
        """Nothing of the batch can be claimed from now on; raises Fenced when another launch than this owns it."""
        async with transaction(self.engine) as conn:
            await control.mark_cancelling(conn, batch_id, reason, launch_id)

    async def batch_control(self, batch_id: str) -> BatchControl:
        """The control columns of a batch."""
        async with reading(self.engine) as conn:
            return await control.batch_control(conn, batch_id)

    async def counts(self, batch_id: str) -> Counts:
        """The roll call in numbers."""
        async with reading(self.engine) as conn:
            return await control.counts(conn, batch_id)

    async def batch_is_whole(self, batch_id: str) -> bool:
        """Whether every planned row is final; notes when."""
        async with transaction(self.engine) as conn:
            return await control.batch_is_whole(conn, batch_id)

    async def startable(self, batch_id: str, limit: int = 1000) -> list[StartRow]:
        """Waiting rows to start now: no more than the free window, none while paused, stopping or cancelling."""
        async with reading(self.engine) as conn:
            return await pump.startable(conn, batch_id, limit)

    async def stale_queued(self, batch_id: str, older_than_s: float, limit: int = 1000) -> list[StartRow]:
        """Rows queued longer than `older_than_s` seconds ago and never claimed."""
        async with reading(self.engine) as conn:
            return await pump.stale_queued(conn, batch_id, older_than_s, limit)

    async def mark_queued(self, keys: Iterable[str], *, again: bool = False) -> list[str]:
        """waiting → queued; `again` also renews rows that are queued. Returns the keys that changed."""
        async with transaction(self.engine) as conn:
            return await pump.mark_queued(conn, keys, again=again)

    async def in_flight(self, batch_id: str) -> list[str]:
        """Keys of queued and running rows."""
        async with reading(self.engine) as conn:
            return await pump.in_flight(conn, batch_id)

    async def close_open(self, batch_id: str, reason: str, chunk: int = 1000, launch_id: str = "") -> int:
        """Close every row that is not final as cancelled, in transactions of `chunk` rows; how many were closed.

        Raises Fenced when the batch belongs to another launch than `launch_id`.
        """
        await self.mark_cancelling(batch_id, reason, launch_id)
        closed = 0
        while keys := await self._open_rows(batch_id):
            for start in range(0, len(keys), chunk):
                some = keys[start : start + chunk]
                async with transaction(self.engine) as conn:
                    closed += await close.close_some(conn, batch_id, reason, some, launch_id)
        await self.batch_is_whole(batch_id)
        return closed

    async def _open_rows(self, batch_id: str) -> list[str]:
        async with reading(self.engine) as conn:
            return await close.open_rows(conn, batch_id)

    # --- attempts -------------------------------------------------------------------------------------------

    async def claim(self, rollout_key: str, run_id: str, workflow_id: str, n: int) -> Claim:
        """Claim number `n` of a run: the attempt, or `final`, or `stopping`; raises Fenced."""
        async with transaction(self.engine) as conn:
            return await claim.claim(conn, rollout_key, run_id, workflow_id, n)

    async def attempt_context(self, attempt: AttemptRef, run_id: str) -> AttemptContext:
        """What an activity needs to know of its attempt; raises Fenced."""
        async with reading(self.engine) as conn:
            return await fence.attempt_context(conn, attempt, run_id)

    async def step(self, attempt: AttemptRef, run_id: str, step: int) -> StepSoFar:
        """The attempt and what is committed of one of its steps, in one look; raises Fenced."""
        async with reading(self.engine) as conn:
            return await steps.so_far(conn, self._contexts, attempt, run_id, step)

    async def finalize(self, request: FinalizeRequest, run_id: str) -> Finalized:
        """End an attempt: outcome, decision, selection; raises Fenced or LedgerConflict."""
        async with transaction(self.engine) as conn:
            return await finalize.finalize(conn, request, run_id)

    async def commit_model_call(self, attempt: AttemptRef, run_id: str, call: ModelCall) -> StoredCall:
        """Commit a call of the policy; what was committed first counts."""
        async with transaction(self.engine) as conn:
            return await commits.commit_model_call(conn, attempt, run_id, call)

    async def find_model_call(self, attempt: AttemptRef, step: int) -> StoredCall | None:
        """The call that decided a step; None before it."""
        async with reading(self.engine) as conn:
            return await commits.find_model_call(conn, attempt, step)

    async def calls_until(self, attempt: AttemptRef, step: int) -> list[StoredCall]:
        """Every call of an attempt up to and including a step, in their order."""
        async with reading(self.engine) as conn:
            return await commits.calls_until(conn, attempt, step)

    async def model_call(self, attempt: AttemptRef, step: int) -> StoredCall:
        """The call that decided a step; raises LedgerError when there is none."""
        found = await self.find_model_call(attempt, step)
        if found is None:
            raise LedgerError(f"step {step} of {attempt.rollout_key} was not decided")
        return found

    async def commit_turn(
        self,
        attempt: AttemptRef,
        run_id: str,
        *,
        step: int,
        observation: Observation,
        actions: list[dict[str, Any]],
        started_at: float,
    ) -> StoredTurn:
        """Commit what a step did and what was seen after it; what was committed first counts."""
        async with transaction(self.engine) as conn:
            return await commits.commit_turn(
                conn, attempt, run_id, step=step, observation=observation, actions=actions, started_at=started_at
            )

    async def turn(self, attempt: AttemptRef, step: int) -> StoredTurn | None:
        """The committed turn of a step; None before it."""
        async with reading(self.engine) as conn:
            return await commits.turn(conn, attempt, step)

    async def latest_observation(self, rollout_key: str) -> Observation | None:
        """What was last seen of a rollout."""
        async with reading(self.engine) as conn:
            return await commits.latest_observation(conn, rollout_key)

    async def commit_evaluation(self, attempt: AttemptRef, run_id: str, evaluation: Evaluation) -> StoredEvaluation:
        """Commit the evaluator's answer; what was committed first counts."""
        async with transaction(self.engine) as conn:
            return await commits.commit_evaluation(conn, attempt, run_id, evaluation)

    async def evaluation(self, attempt: AttemptRef) -> StoredEvaluation | None:
        """The committed evaluation of an attempt; None before it."""
        async with reading(self.engine) as conn:
            return await commits.find_evaluation(conn, attempt)

    async def rollouts_of(self, batch_id: str) -> list[recording.Row]:
        """The planned rollouts of a batch, in plan order."""
        async with reading(self.engine) as conn:
            return await recording.rollouts_of(conn, batch_id)

    async def members_of(self, batch_id: str) -> dict[str, recording.Row]:
        """Group statistics of every final rollout of a batch, by its key."""
        async with reading(self.engine) as conn:
            return await recording.members_of(conn, batch_id)

    async def batch_of(self, batch_id: str) -> recording.Row:
        """A batch with its contract; raises InvalidInput."""
        async with reading(self.engine) as conn:
            return await recording.batch_of(conn, batch_id)

    async def planned_rollout(self, rollout_key: str) -> recording.Row:
        """A planned row with contract and task document, attempted or not; raises InvalidInput."""
        async with reading(self.engine) as conn:
            return await recording.planned_rollout(conn, rollout_key)

    async def recorded(self, rollout_key: str, attempt: int | None = None) -> recording.Recorded:
        """Everything about one attempt, the selected one by default; raises InvalidInput."""
        async with transaction(self.engine) as conn:
            return await recording.recorded(conn, rollout_key, attempt)

    # --- desktops -------------------------------------------------------------------------------------------

    async def sandbox_intent(
        self,
        attempt: AttemptRef,
        run_id: str,
        *,
        sandbox_key: str,
        deployment_id: str,
        provider: str,
        lease_s: float,
    ) -> None:
        """About to create or find the desktop of an attempt; raises SandboxLost when it was stopped already."""
        async with transaction(self.engine) as conn:
            await sandboxes.sandbox_intent(
                conn,
                attempt,
                run_id,
                sandbox_key=sandbox_key,
                deployment_id=deployment_id,
                provider=provider,
                lease_s=lease_s,
            )

    async def sandbox_started(self, attempt: AttemptRef, run_id: str, desk: Desk, *, lease_s: float) -> None:
        """The desktop is ready; raises SandboxLost when it was stopped meanwhile."""
        async with transaction(self.engine) as conn:
            await sandboxes.sandbox_started(conn, attempt, run_id, desk, lease_s)

    async def sandbox_renew(self, attempt: AttemptRef, run_id: str, *, lease_s: float) -> None:
        """Keep the desktop for `lease_s` more seconds."""
        async with transaction(self.engine) as conn:
            await sandboxes.sandbox_renew(conn, attempt, run_id, lease_s)

    async def sandbox_of(self, attempt: AttemptRef) -> Lease | None:
        """The lease of an attempt, stopped or not."""
        async with reading(self.engine) as conn:
            return await sandboxes.sandbox_of(conn, attempt)

    async def sandbox_stopped(self, sandbox_key: str, reason: str) -> bool:
        """The desktop is gone; False if that was known."""
        async with transaction(self.engine) as conn:
            return await sandboxes.sandbox_stopped(conn, sandbox_key, reason)

    async def has_desktops(self, batch_id: str, patience_s: float) -> bool:
        """Whether any desktop of the batch is not known to be stopped; not asked any more after `patience_s`."""
        async with reading(self.engine) as conn:
            return await sandboxes.has_desktops(conn, batch_id, patience_s)

    async def leases_of(self, deployment_id: str, keys: list[str]) -> list[Lease]:
        """Leases of a deployment by their keys, stopped ones included."""
        async with transaction(self.engine) as conn:
            return await sandboxes.leases_of(conn, deployment_id, keys)

    async def live_sandboxes(self, deployment_id: str) -> list[Lease]:
        """Leases of a deployment that are not stopped."""
        async with reading(self.engine) as conn:
            return await sandboxes.live_sandboxes(conn, deployment_id)

    # --- after the fact -------------------------------------------------------------------------------------

    async def request_rerun(
        self,
        batch_id: str,
        which: rerun.Selector | Sequence[str],
        *,
        reason: str,
        requested_by: str,
        supersede: bool = False,
    ) -> list[str]:
        """Ask for final rollouts (`masked`, `failed`, `all` or keys) to run again; the keys that now wait."""
        async with transaction(self.engine) as conn:
            return await rerun.request_rerun(
                conn, batch_id, which, reason=reason, requested_by=requested_by, supersede=supersede
            )

    async def decide_admission(
        self,
        rollout_key: str,
        decision: AdmissionDecision,
        *,
        decided_by: str,
        attempt_index: int | None = None,
        evidence: dict[str, Any] | None = None,
    ) -> AttemptRef:
        """Append a decision on an ended attempt, the selected one by default."""
        async with transaction(self.engine) as conn:
            return await decisions.decide_admission(
                conn, rollout_key, decision, decided_by=decided_by, attempt_index=attempt_index, evidence=evidence
            )

    async def redecide(
        self, batch_id: str, rule: redecide.Rule, *, dry_run: bool = False, chunk: int = 500
    ) -> redecide.Redecided:
        """Decide the selected attempts of a batch anew, in transactions of `chunk` rollouts; repeating it is harmless.

        `dry_run`: count only. Raises InvalidInput for an unknown batch or policy.
        """
        done, after = redecide.start(rule), -1
        await self.batch_control(batch_id)
        while True:
            async with transaction(self.engine) as conn:
                last = await redecide.redecide_some(conn, batch_id, rule, done, after, dry_run=dry_run, chunk=chunk)
            if last is None:
                return done
            after = last

    async def import_results(self, source: imports.Source) -> Registered:
        """Import results that ran elsewhere as one finished batch, all of them or nothing."""
        async with transaction(self.engine) as conn:
            return await imports.import_results(conn, source)

    async def audit(self, batch_id: str, artifacts: auditing.Artifacts | None = None) -> AuditReport:
        """Prove the roll call of a batch, or list what is wrong; without `artifacts` their bytes are not read."""
        return await auditing.audit(self.engine, batch_id, artifacts)

    # --- reconciliation -------------------------------------------------------------------------------------

    async def suspects(self, deployment_id: str, namespace: str, min_age_s: float, limit: int = 1000) -> list[Suspect]:
        """Rows of this deployment that claim to be under way and were quiet for `min_age_s` seconds."""
        async with reading(self.engine) as conn:
            return await reconcile.suspects(conn, deployment_id, namespace, min_age_s, limit)

    async def sighted_missing(self, rollout_key: str, run_id: str) -> int:
        """The workflow was not found; how many times in a row."""
        async with transaction(self.engine) as conn:
            return await reconcile.sighted_missing(conn, rollout_key, run_id)

    async def sighted_alive(self, rollout_key: str, run_id: str) -> None:
        """The workflow was found."""
        async with transaction(self.engine) as conn:
            await reconcile.sighted_alive(conn, rollout_key, run_id)

    async def open_batches(self, deployment_id: str, namespace: str) -> list[str]:
        """Batches that still have rows to run; see `reconcile.open_batches`."""
        async with transaction(self.engine) as conn:
            return await reconcile.open_batches(conn, deployment_id, namespace)

    async def long_final(self, deployment_id: str, namespace: str, keys: list[str], min_age_s: float) -> list[str]:
        """Rows that have been final for a while; see `reconcile.long_final`."""
        async with transaction(self.engine) as conn:
            return await reconcile.long_final(conn, deployment_id, namespace, keys, min_age_s)

    async def close_reconciled(self, rollout_key: str, attempt_index: int, reason: str) -> str | None:
        """End an attempt whose workflow is gone; the rollout's state after it, None when nothing was done."""
        async with transaction(self.engine) as conn:
            return await close.close_reconciled(conn, rollout_key, attempt_index, reason)

    async def requeue(self, rollout_key: str) -> bool:
        """Back to waiting a row without open attempt whose workflow is gone; False when nothing was done."""
        async with transaction(self.engine) as conn:
            return await close.requeue(conn, rollout_key)
