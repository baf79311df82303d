"""reconcile: what claims to run and does not, what runs and should not. Fence first, then kill, then re-plan.

Only rows and desktops of this deployment and namespace. A workflow counts as gone after two sightings in different
runs and a minimum age; nothing is concluded from a call that failed, or from a listing that is empty.
"""

from collections.abc import Awaitable, Callable

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.support import Activities, beating, reported
from models import names
from models.episode import AttemptRef
from models.reconcile import Reconciled, ReconcileRequest
from rollbook.errors import Fenced, RollbookError
from rollbook.ledger.records import Lease, Suspect
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT
from rollbook.sandboxes.removal import remove_sandbox
from rollbook.services import Services

SHOWN = 50
ROWS = 50_000
"""Rows under way that one run looks at, quiet ones first: well above any window, or the rest would never be seen."""
RUNNING_EPISODES = f"WorkflowType = '{names.EPISODE}' AND ExecutionStatus = 'Running'"


class JanitorActivities:
    """The Janitor's one activity."""

    def __init__(self, services: Services, client: Client) -> None:
        self._services = services
        self._client = client

    def all(self) -> Activities:
        """The activities, for a worker."""
        return [self.reconcile]

    @activity.defn(name=names.RECONCILE)
    @reported
    async def reconcile(self, request: ReconcileRequest) -> Reconciled:
        """One run: rows, workflows, desktops, batches, in this order."""
        async with beating() as note:
            run = Run(self._services, self._client, request)
            for what, step in run.steps():
                note(what)
                await step()
            return run.report()


class Run:
    """One run of the Janitor, and what it has found so far."""

    def __init__(self, services: Services, client: Client, request: ReconcileRequest) -> None:
        self._services = services
        self._ledger = services.ledger
        self._client = client
        self._own = (services.settings.deployment_id, client.namespace)
        self._min_age_s = services.settings.janitor_min_age_s if request.min_age_s is None else request.min_age_s
        self._sightings = request.sightings
        self._numbers = {"looked_at": 0, "alive": 0, "missing": 0, "strangers": 0}
        self._names: dict[str, list[str]] = {
            key: [] for key in ("closed", "requeued", "cancelled", "reaped", "unattended", "doubts")
        }

    def steps(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What to look at, in order: rows are fenced before desktops are killed."""
        return [
            ("rows", self._rows),
            ("workflows of final rows", self._final_rows),
            ("desktops of ended attempts", self._desktops),
            ("desktops nobody knows", self._strangers),
            ("batches", self._batches),
        ]

    def report(self) -> Reconciled:
        """What was found."""
        shown = {key: names_[:SHOWN] for key, names_ in self._names.items()}
        return Reconciled.model_validate({**self._numbers, **shown})

    async def _rows(self) -> None:
        for suspect in await self._ledger.suspects(*self._own, self._min_age_s, limit=ROWS):
            self._numbers["looked_at"] += 1
            alive = await self._lives(suspect.rollout_key, suspect.run_id)
            if alive is None:
                continue
            if alive:
                self._numbers["alive"] += 1
                await self._ledger.sighted_alive(suspect.rollout_key, suspect.run_id)
                await self._renew(suspect)
                continue
            self._numbers["missing"] += 1
            seen = await self._ledger.sighted_missing(suspect.rollout_key, suspect.run_id)
            if seen >= self._sightings:
                await self._settle(suspect)

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
        """Episodes that still run long after their row was final have nothing left to do."""
        try:
            running = [one.id async for one in self._client.list_workflows(RUNNING_EPISODES)]
        except RPCError as error:
            self._doubt("list of running episodes", error)
            return
        for key in await self._ledger.long_final(*self._own, running, self._min_age_s):
            if await self._ledger.sighted_missing(key, "final") >= self._sightings:
                await self._try(key, self._client.get_workflow_handle(key).cancel())
                self._names["cancelled"].append(key)

    async def _desktops(self) -> None:
        """Leases whose attempt has ended: the episode's own stop has had its time."""
        for lease in await self._ledger.live_sandboxes(self._own[0]):
            if lease.attempt_open:
                continue
            if await self._ledger.sighted_missing(lease.rollout_key, f"desktop {lease.sandbox_key}") >= self._sightings:
                await self._reap(lease, "its attempt has ended")

    async def _reap(self, lease: Lease, reason: str) -> None:
        async def remove() -> None:
            await remove_sandbox(self._services.provider(lease.provider), lease)
            await self._ledger.sandbox_stopped(lease.sandbox_key, reason=f"janitor: {reason}")
            self._names["reaped"].append(lease.sandbox_key)

        await self._try(f"desktop {lease.sandbox_key}", remove())

    async def _strangers(self) -> None:
        """Desktops that are listed although their lease was stopped came late: reaped. Desktops with our label that
        no lease knows may belong to another ledger: counted only."""
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
            self._numbers["strangers"] += len(set(keys) - {lease.sandbox_key for lease in late})

    async def _batches(self) -> None:
        for batch_id in await self._ledger.open_batches(*self._own):
            if await self._lives(batch_id, "") is False:
                self._names["unattended"].append(batch_id)

    async def _lives(self, workflow_id: str, run_id: str) -> bool | None:
        """Whether a workflow runs; None when nobody can tell."""
        try:
            description = await self._client.get_workflow_handle(workflow_id, run_id=run_id or None).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            self._doubt(workflow_id, error)
            return None
        except ValueError as error:  # a state that this SDK does not know, for instance paused: no death
            self._doubt(workflow_id, error)
            return None
        return description.status == WorkflowExecutionStatus.RUNNING

    async def _try(self, what: str, work: Awaitable[object]) -> None:
        """One failure must not keep the rest from being looked at."""
        try:
            await work
        except Fenced:
            pass  # it has gone on meanwhile, which is what was to be seen
        except (RollbookError, RPCError) as error:
            self._doubt(what, error)

    def _doubt(self, what: str, error: Exception) -> None:
        self._names["doubts"].append(f"{what}: {type(error).__name__}: {error}"[:200])
