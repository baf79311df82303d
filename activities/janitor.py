"""reconcile: end rows whose workflow is gone, remove desktops whose attempt has ended. Fence, then kill, then plan.

Only rows and desktops of this deployment and namespace. A workflow counts as gone after two sightings, some time apart,
and a minimum age; nothing is concluded from a failed call or an empty listing.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.support import Activities, beating, implements
from models import names
from models.activities import RECONCILE
from models.episode import AttemptRef
from models.janitor import Reconciled, ReconcileRequest
from rollbook.errors import Fenced, RollbookError
from rollbook.ledger.janitor import OpenBatch
from rollbook.ledger.records import Lease, Suspect
from rollbook.osworld.runner import SOCKETS_KEY, sockets_prefix
from rollbook.policies.registry import pinned_spec
from rollbook.redaction import redact_head
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, remove_sandbox
from rollbook.worker.server_check import check_server
from rollbook.worker.services import Services

SHOWN = 50
SHOWN_BYTES = 1200
"""Most names of one list in the report, and their most bytes together: the report goes into the history."""
ROWS = 50_000
"""Open rows that one run examines, quiet ones first: far more than any window, or the rest would never be examined."""
LISTS = ("closed", "requeued", "cancelled", "reaped", "finished", "stopped", "relaunched", "unattended", "doubts")
RUNNING_EPISODES = f"WorkflowType = '{names.EPISODE}' AND ExecutionStatus = 'Running'"


LEFT_S = 3600.0
"""A directory that was changed later may belong to a phase whose lease this run has not seen."""


class JanitorActivities:
    """The Janitor's one activity."""

    def __init__(self, services: Services, client: Client) -> None:
        self._services = services
        self._client = client

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.reconcile]

    @implements(RECONCILE)
    async def reconcile(self, request: ReconcileRequest) -> Reconciled:
        """One run: rows, workflows, desktops, batches, in this order."""
        await check_server(self._services, self._client)  # before anything is concluded from a missing workflow
        async with beating() as note:
            run = Run(self._services, self._client, request)
            for what, step in run.steps():
                note(what)
                await step()
            return run.report()


class Run:
    """One run of the Janitor, and its findings so far."""

    def __init__(self, services: Services, client: Client, request: ReconcileRequest) -> None:
        self._services = services
        self._ledger = services.ledger
        self._client = client
        self._own = (services.settings.deployment_id, client.namespace)
        self._min_age_s = services.settings.janitor_min_age_s if request.min_age_s is None else request.min_age_s
        self._sightings = request.sightings
        self._gap_s = request.gap_s
        self._numbers = {"looked_at": 0, "alive": 0, "missing": 0, "strangers": 0}
        self._names: dict[str, list[str]] = {key: [] for key in LISTS}

    def steps(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """The checks in their order: rows are fenced before desktops are killed."""
        return [
            ("rows", self._rows),
            ("workflows of final rows", self._final_rows),
            ("desktops of ended attempts", self._desktops),
            ("unknown desktops", self._strangers),
            ("directories of ended attempts", self._directories),
            ("batches", self._batches),
        ]

    def report(self) -> Reconciled:
        """The findings."""
        totals = {key: len(found) for key, found in self._names.items() if found}
        shown = {key: _shown(found) for key, found in self._names.items()}
        return Reconciled.model_validate({**self._numbers, **shown, "totals": totals})

    async def _rows(self) -> None:
        for suspect in await self._ledger.suspects(*self._own, self._min_age_s, limit=ROWS):
            self._numbers["looked_at"] += 1
            alive = await self._lives(suspect.workflow_id, suspect.run_id)
            if alive is None:
                continue
            if alive:
                self._numbers["alive"] += 1
                await self._ledger.clear_missing(suspect.rollout_key, suspect.run_id)
                await self._renew(suspect)
                continue
            self._numbers["missing"] += 1
            if await self._often_enough(suspect.rollout_key, suspect.run_id):
                await self._try(suspect.rollout_key, self._settle(suspect))

    async def _often_enough(self, rollout_key: str, what: str) -> bool:
        """Record a sighting; returns True when there were enough in a row."""
        return await self._ledger.count_missing(rollout_key, what, self._gap_s) >= self._sightings

    async def _settle(self, suspect: Suspect) -> None:
        """The workflow is gone: close its attempt, or put a row back that was never claimed."""
        key = suspect.rollout_key
        if suspect.attempt_index is None:
            if await self._ledger.requeue(key):
                self._names["requeued"].append(key)
            return
        reason = f"workflow run {suspect.run_id} is gone"
        if await self._ledger.close_reconciled(key, suspect.attempt_index, reason) is not None:
            self._names["closed"].append(f"{key} attempt {suspect.attempt_index}")
        lease = await self._ledger.sandbox_of(AttemptRef(rollout_key=key, attempt_index=suspect.attempt_index))
        if lease is not None and lease.state != "stopped":
            await self._reap(lease, "its workflow is gone")

    async def _renew(self, suspect: Suspect) -> None:
        if suspect.attempt_index is None:
            return
        attempt = AttemptRef(rollout_key=suspect.rollout_key, attempt_index=suspect.attempt_index)
        lease = await self._ledger.sandbox_of(attempt)
        if lease is not None and lease.state != "stopped":
            await self._try(
                f"lease of {suspect.rollout_key}",
                self._ledger.sandbox_renew(attempt, suspect.run_id, lease_s=self._services.settings.lease_s),
            )

    async def _final_rows(self) -> None:
        """Episodes that still run long after their row was final have nothing left to do.

        They are cancelled by the run that was listed: a rerun may have started another one under the same id since.
        """
        try:
            running = [(one.id, one.run_id) async for one in self._client.list_workflows(RUNNING_EPISODES)]
        except RPCError as error:
            self._doubt("list of running episodes", error)
            return
        final = set(await self._ledger.long_final(*self._own, {key for key, _ in running}, self._min_age_s))
        for key, run_id in running:
            if key in final and await self._often_enough(key, f"final {run_id}"):
                await self._cancel(key, run_id)

    async def _cancel(self, key: str, run_id: str) -> None:
        """Cancel a run. One that has ended is skipped: the server would accept its cancel too."""
        if not await self._lives(key, run_id):
            return

        async def cancel() -> None:
            await self._client.get_workflow_handle(key, run_id=run_id).cancel()
            self._names["cancelled"].append(key)

        await self._try(key, cancel())

    async def _desktops(self) -> None:
        """Remove desktops of ended attempts that the episode itself did not stop in time."""
        for lease in await self._ledger.live_sandboxes(self._own[0]):
            if not lease.attempt_open and await self._often_enough(lease.rollout_key, f"desktop {lease.sandbox_key}"):
                await self._reap(lease, "its attempt has ended")

    async def _reap(self, lease: Lease, reason: str) -> None:
        async def remove() -> None:
            await remove_sandbox(self._services.provider(lease.provider), lease)
            await self._ledger.sandbox_stopped(lease.sandbox_key, reason=f"janitor: {reason}")
            self._names["reaped"].append(lease.sandbox_key)

        await self._try(f"desktop {lease.sandbox_key}", remove())

    async def _strangers(self) -> None:
        """Remove desktops that appeared after their lease was stopped; count those with our label and without a lease.

        The latter may belong to another ledger.
        """
        live = {lease.sandbox_key for lease in await self._ledger.live_sandboxes(self._own[0])}
        for provider in self._services.providers.values():
            try:
                listed = await provider.list({LABEL_DEPLOYMENT: self._own[0]})
            except RollbookError as error:
                self._doubt(f"desktops of {provider.name}", error)
                continue
            keys = [one.key for one in listed if one.key not in live]
            late = await self._ledger.leases_of(self._own[0], keys) if keys else []
            for lease in late:
                if lease.state == "stopped":
                    await self._reap(lease, "it appeared after its stop")
            await self._try(f"what {provider.name} keeps beside desktops", provider.tidy())
            self._numbers["strangers"] += len(set(keys) - {lease.sandbox_key for lease in late})

    async def _directories(self) -> None:
        """Remove what attempts left on this host whose worker was killed: no other step will."""
        live = {lease.sandbox_key for lease in await self._ledger.live_sandboxes(self._own[0])}
        before = time.time() - max(self._min_age_s, LEFT_S)
        await asyncio.to_thread(_remove_left, self._services.work_root, live, before)

    async def _batches(self) -> None:
        """Finish the cancel of batches without a workflow, start those again that Temporal lost, report the others."""
        for batch in await self._ledger.open_batches(*self._own, self._min_age_s):
            alive = await self._lives(batch.batch_id, "")
            if alive is None:
                continue
            if batch.cancelling:
                await self._cancelled_batch(batch, alive)
            elif not alive and batch.stopping:
                if not batch.in_flight:  # otherwise its episodes end by themselves, or `_rows` requeues them
                    self._names["stopped"].append(batch.batch_id)
            elif not alive and not (batch.is_lost and not batch.paused and await self._relaunched(batch.batch_id)):
                self._names["unattended"].append(batch.batch_id)

    async def _relaunched(self, batch_id: str) -> bool:
        """Start a batch again that was lost with its Temporal server; False when it has ended on the new one since."""
        spec = pinned_spec(await self._ledger.batch(batch_id))
        queue = self._services.settings.task_queue_orchestrate
        reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE
        try:
            await self._client.start_workflow(names.BATCH, spec, id=batch_id, task_queue=queue, id_reuse_policy=reuse)
        except WorkflowAlreadyStartedError:
            return False
        self._names["relaunched"].append(batch_id)
        return True

    async def _cancelled_batch(self, batch: OpenBatch, alive: bool) -> None:
        """Finish the work of the batch's workflow: fence and close every open row, then cancel the episodes."""
        what = f"batch {batch.launch_id}"
        if alive:
            await self._ledger.clear_missing(batch.first_key, what)
            return
        if not batch.is_quiet or not await self._often_enough(batch.first_key, what):
            return
        runs = await self._ledger.open_runs(batch.batch_id)
        reason = batch.control_reason or "the batch was cancelled"

        async def close() -> None:
            keep = self._services.artifacts.put
            closed = await self._ledger.close_open(batch.batch_id, reason, launch_id=batch.launch_id, keep=keep)
            self._names["finished"].append(f"{batch.batch_id}: {closed} rows closed")
            for key, run_id in runs:
                await self._cancel(key, run_id)

        await self._try(f"batch {batch.batch_id}", close())

    async def _lives(self, workflow_id: str, run_id: str) -> bool | None:
        """Return whether a workflow runs, None when that is unknown."""
        try:
            description = await self._client.get_workflow_handle(workflow_id, run_id=run_id or None).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            self._doubt(workflow_id, error)
            return None
        except ValueError as error:  # a state that this SDK does not know, for instance paused: not proof of an end
            self._doubt(workflow_id, error)
            return None
        return description.status == WorkflowExecutionStatus.RUNNING

    async def _try(self, what: str, work: Awaitable[object]) -> None:
        """Await `work`; a failure becomes a doubt, so that the other checks still run."""
        try:
            await work
        except Fenced:
            pass  # it made progress meanwhile
        except (RollbookError, RPCError) as error:
            if not (isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND):  # ended meanwhile
                self._doubt(what, error)

    def _doubt(self, what: str, error: Exception) -> None:
        self._names["doubts"].append(redact_head(f"{what}: {type(error).__name__}: {error}", 200))


def _shown(found: list[str]) -> list[str]:
    """The first names of a list, within the limits of the report."""
    shown: list[str] = []
    for name in found[:SHOWN]:
        if sum(map(len, shown)) + len(name) > SHOWN_BYTES:
            break
        shown.append(name)
    return shown


def _remove_left(work: Path, live: set[str], before: float) -> None:
    """Remove work and socket directories of desktops that are not live and were last changed before a time."""
    prefix = sockets_prefix(work)
    sockets = Path(tempfile.gettempdir()).glob(f"{prefix}*")
    short = {key[:SOCKETS_KEY] for key in live}
    left = [path for path in work.glob("*") if path.name not in live]
    left += [path for path in sockets if path.name.removeprefix(prefix)[:SOCKETS_KEY] not in short]
    for path in left:
        try:
            # another user's directory of that name is not ours to judge
            if path.is_dir() and path.stat().st_mtime < before and path.stat().st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its owner has removed it meanwhile
            continue
