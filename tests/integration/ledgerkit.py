"""Batches and episodes for ledger tests: real transactions against a real Postgres, no workflow around them."""

import uuid
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from models.batch import BatchSpec, RegisterBatch, Resolved, read_spec
from models.episode import AttemptRef, Finalized, FinalizeRequest, Observation
from models.evidence import ArtifactRef
from models.identity import digest
from models.outcome import Infra, OutcomeFacts
from models.task import Task, read_task
from rollbook.ledger import AuditReport, Claim, Evaluation, Ledger, ModelCall, Registered

DEPLOYMENT = "test"
NAMESPACE = "default"


def make_task(number: int, domain: str = "os", instruction: str = "do it") -> Task:
    """A small task in OSWorld's format."""
    document = {
        "id": f"task-{number:03d}",
        "instruction": f"{instruction} {number}",
        "config": [],
        "evaluator": {"func": "exact_match", "threshold": 1e22},
    }
    return read_task(domain, document)


def make_tasks(count: int) -> list[Task]:
    """`count` tasks over three domains."""
    domains = ("chrome", "os", "zebra")
    return [make_task(number, domains[number % 3]) for number in range(count)]


def spec_of(**changes: Any) -> BatchSpec:
    """A valid spec over the task set `tasks`."""
    return read_spec({"task_set": "tasks", "policy": {"kind": "noop"}, "concurrency": 4} | changes)


def artifact(name: str) -> ArtifactRef:
    """A reference to bytes that nobody stored."""
    return ArtifactRef(sha256=digest(name), size_bytes=10, media_type="image/png")


def facts(**changes: Any) -> OutcomeFacts:
    """Facts of an attempt that answered DONE and was evaluated."""
    if "infrastructure_failure_reason" in changes:
        return OutcomeFacts(**changes)
    ended = {"horizon_reached", "policy_stop_reason", "environment_done", "terminal_action"} & changes.keys()
    base: dict[str, Any] = {"evaluation_completed": True} | ({} if ended else {"terminal_action": "DONE"})
    return OutcomeFacts(**(base | changes))


@dataclass
class Kit:
    """A ledger with a task set, and shorthands for what an episode does to it."""

    ledger: Ledger
    batch_id: str = "b-1"
    tasks: list[Task] = field(default_factory=list)

    async def register(self, launch_id: str | None = None, **changes: Any) -> Registered:
        """Register (or relaunch) the batch."""
        request = RegisterBatch(
            batch_id=self.batch_id,
            namespace=NAMESPACE,
            spec=spec_of(**changes),
            launch_id=launch_id or uuid.uuid4().hex,
        )
        return await self.ledger.register_batch(
            request, deployment_id=DEPLOYMENT, resolved=Resolved(desktop_image="image@1", evaluator_revision="1.0.2")
        )

    async def claim(self, key: str, run_id: str = "run-1", n: int = 1) -> Claim:
        """Claim as a workflow of its own id."""
        return await self.ledger.claim(key, run_id, key, n)

    async def evaluate(self, key: str, attempt_index: int, run_id: str, score: float | None) -> None:
        """Commit an evaluation; without a score, one whose exchange with the guest failed."""
        context = await self.ledger.attempt_context(ref(key, attempt_index), run_id)
        evaluation = Evaluation(
            completed=score is not None,
            score=score,
            reason=None if score is not None else Infra.EVALUATOR_ERROR,
            guest_failed=score is None,
            task_digest=context.task_digest,
            evaluator_revision="1.0.2",
        )
        await self.ledger.commit_evaluation(ref(key, attempt_index), run_id, evaluation)

    async def end(
        self, key: str, attempt_index: int, run_id: str, *, steps: int = 3, guest_failed: bool = False, **changes: Any
    ) -> Finalized:
        """Finalize with facts of DONE and evaluated, changed as given."""
        request = FinalizeRequest(
            attempt=ref(key, attempt_index), facts=facts(**changes), steps=steps, guest_failed=guest_failed
        )
        return await self.ledger.finalize(request, run_id)

    async def step(self, key: str, attempt_index: int, run_id: str, step: int) -> None:
        """One decided and acted step with its evidence."""
        attempt = ref(key, attempt_index)
        if step > 0:
            call = ModelCall(step=step, policy_kind="noop", actions=["WAIT"], response=artifact(f"{key}/{step}/r"))
            await self.ledger.commit_model_call(attempt, run_id, call)
        await self.ledger.commit_turn(
            attempt,
            run_id,
            step=step,
            observation=Observation(screenshot=artifact(f"{key}/{step}")),
            actions=[] if step == 0 else [{"status": "ok"}],
            started_at=1_700_000_000.0,
        )

    async def run(self, key: str, run_id: str | None = None, *, score: float = 1.0, steps: int = 2) -> Finalized:
        """A whole episode of one attempt that is scored."""
        run_id = run_id or uuid.uuid4().hex
        claimed = await self.claim(key, run_id)
        assert claimed.status == "claimed"
        for step in range(steps + 1):
            await self.step(key, claimed.attempt_index, run_id, step)
        await self.evaluate(key, claimed.attempt_index, run_id, score)
        return await self.end(key, claimed.attempt_index, run_id, steps=steps)

    async def keys(self, **changes: Any) -> list[str]:
        """Register the batch and return its rollouts in plan order."""
        await self.register(**changes)
        return await self.planned()

    async def planned(self) -> list[str]:
        """Keys of the batch in plan order."""
        query = "SELECT rollout_key FROM rollout WHERE batch_id = :batch_id ORDER BY plan_order"
        return [row["rollout_key"] for row in await rows(self.ledger, query, batch_id=self.batch_id)]

    async def row(self, key: str) -> Any:
        """The rollout row."""
        return (await rows(self.ledger, "SELECT * FROM rollout WHERE rollout_key = :key", key=key))[0]

    async def outcomes(self, key: str) -> list[Any]:
        """The ends of a rollout's attempts, oldest first."""
        query = "SELECT * FROM outcome WHERE rollout_key = :key ORDER BY attempt_index"
        return await rows(self.ledger, query, key=key)

    async def clean(self) -> AuditReport:
        """Audit the batch; anything but rows that are not final fails the test."""
        report = await self.ledger.audit(self.batch_id)
        wrong = [finding for finding in report.findings if finding.kind != "not_final"]
        assert not wrong, wrong
        return report


def ref(key: str, attempt_index: int) -> AttemptRef:
    """An attempt."""
    return AttemptRef(rollout_key=key, attempt_index=attempt_index)


async def rows(ledger: Ledger, query: str, **values: Any) -> list[Any]:
    """Rows of a query, as mappings."""
    async with ledger.engine.connect() as conn:
        return list((await conn.execute(text(query), values)).mappings())


async def behind_the_guards(ledger: Ledger, statement: str, **values: Any) -> int:
    """Change the database as only a superuser can, with every trigger switched off; rows that changed."""
    async with ledger.engine.begin() as conn:
        await conn.execute(text("SET LOCAL session_replication_role = replica"))
        return (await conn.execute(text(statement), values)).rowcount
