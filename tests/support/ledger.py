"""Batches and episodes for ledger tests: real transactions against a real Postgres, no workflow around them."""

import hashlib
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from sqlalchemy import text

from models.batch import RegisterBatch
from models.contract import Resolved
from models.episode import AttemptRef, Finalized, FinalizeRequest, Observation
from models.evidence import ArtifactRef
from models.identity import digest
from models.outcome import Infra, OutcomeFacts
from models.spec import BatchSpec, read_spec
from models.task import Task, read_task
from rollbook.errors import Fenced
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
    """A reference to bytes that were never stored."""
    return ArtifactRef(sha256=digest(name), size_bytes=10, media_type="image/png")


def facts(**changes: Any) -> OutcomeFacts:
    """Facts of an attempt that answered DONE and was evaluated."""
    if "infrastructure_failure_reason" in changes:
        return OutcomeFacts(**changes)
    ended = {"horizon_reached", "policy_stop_reason", "environment_done", "terminal_action"} & changes.keys()
    base: dict[str, Any] = {"evaluation_completed": True} | ({} if ended else {"terminal_action": "DONE"})
    return OutcomeFacts(**(base | changes))


LOG = b"the evaluator's log"
ORIGIN: dict[str, Any] = {
    "evaluator_revision": "1.0.2",
    "numpy_version": "1.26.4",
    "exchanges": {"by_port": {}, "failures": []},
    "log": ArtifactRef(sha256=hashlib.sha256(LOG).hexdigest(), size_bytes=len(LOG), media_type="text/plain"),
}
"""Columns that every completed evaluation has."""


@dataclass
class Kit:
    """A ledger with a task set, and shorthands for what an episode does to it."""

    ledger: Ledger
    batch_id: str = "b-1"
    tasks: list[Task] = field(default_factory=list)

    async def register(
        self, launch_id: str | None = None, unrunnable: Mapping[str, str] = MappingProxyType({}), **changes: Any
    ) -> Registered:
        """Register (or relaunch) the batch."""
        request = RegisterBatch(
            batch_id=self.batch_id,
            namespace=NAMESPACE,
            spec=spec_of(**changes),
            launch_id=launch_id or uuid.uuid4().hex,
        )
        return await self.ledger.register_batch(
            request,
            deployment_id=DEPLOYMENT,
            resolved=Resolved(desktop_image="image@1", evaluator_revision="1.0.2"),
            unrunnable=unrunnable,
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
            **ORIGIN,
        )
        await self.ledger.commit_evaluation(ref(key, attempt_index), run_id, evaluation)

    async def end(
        self,
        key: str,
        attempt_index: int,
        run_id: str,
        *,
        steps: int | None = None,
        guest_failed: bool = False,
        **changes: Any,
    ) -> Finalized:
        """Finalize with facts of DONE and evaluated, changed as given, and the evidence that such an end has.

        Without `steps` they are as few as the facts allow.
        """
        said = facts(**changes)
        decided = await self._decided(key, attempt_index)
        if steps is None:
            steps = await self._fewest(key, said, decided)
        with suppress(Fenced):  # the end itself says who may not, and what is the same again
            await self._prove(key, attempt_index, run_id, said, steps, decided)
        request = FinalizeRequest(attempt=ref(key, attempt_index), facts=said, steps=steps, guest_failed=guest_failed)
        return await self.ledger.finalize(request, run_id)

    async def _decided(self, key: str, attempt_index: int) -> Any:
        """Of the last call that decided a step: step, terminal action, stop reason and number of actions."""
        query = """
            SELECT step, terminal_action, policy_stop_reason, jsonb_array_length(actions) FROM model_call
            WHERE rollout_key = :key AND attempt_index = :index AND (accepted OR policy_stop_reason IS NOT NULL)
            ORDER BY step DESC LIMIT 1
        """
        found = await rows(self.ledger, query, key=key, index=attempt_index)
        return tuple(found[0].values()) if found else (0, None, None, 0)

    async def _fewest(self, key: str, said: OutcomeFacts, decided: Any) -> int:
        if said.horizon_reached:
            query = "SELECT contract FROM batch JOIN rollout USING (batch_id) WHERE rollout_key = :key"
            return int((await rows(self.ledger, query, key=key))[0]["contract"]["limits"]["max_steps"])
        by_rule = said.terminal_action or said.policy_stop_reason or said.environment_done
        if not by_rule or (decided[0] > 0 and decided[1:3] == (said.terminal_action, said.policy_stop_reason)):
            return int(decided[0])
        return int(decided[0]) + 1

    async def _prove(
        self, key: str, attempt_index: int, run_id: str, said: OutcomeFacts, steps: int, decided: Any
    ) -> None:
        """Calls and turns up to the last step, as a runner leaves them."""
        attempt = ref(key, attempt_index)
        seen = "SELECT step FROM turn WHERE rollout_key = :key AND attempt_index = :index"
        acted = {row["step"] for row in await rows(self.ledger, seen, key=key, index=attempt_index)}
        ends = bool(said.terminal_action or said.policy_stop_reason)
        for step in range(decided[0] + 1, steps + 1):
            call = ModelCall(step=step, policy_kind="noop", actions=["WAIT"])
            if ends and step == steps:
                last = {"terminal_action": said.terminal_action, "policy_stop_reason": said.policy_stop_reason}
                call = ModelCall(step=step, policy_kind="noop", accepted=not said.policy_stop_reason, **last)
            await self.ledger.commit_model_call(attempt, run_id, call)
        if said.infrastructure_failure_reason is None:
            idle = ends and (decided[0] < steps or decided[3] == 0)  # nothing is done and seen after such an end
            for step in sorted({*range(steps + 1 - idle)} - acted):
                await self._turn(attempt, run_id, step)

    async def step(
        self,
        key: str,
        attempt_index: int,
        run_id: str,
        step: int,
        terminal_action: Literal["DONE"] | None = None,
        **host: Any,
    ) -> None:
        """One decided and acted step with its evidence."""
        attempt = ref(key, attempt_index)
        if step > 0:
            call = ModelCall(
                step=step,
                policy_kind="noop",
                actions=["WAIT"],
                terminal_action=terminal_action,
                response=artifact(f"{key}/{step}/r"),
            )
            await self.ledger.commit_model_call(attempt, run_id, call)
        await self._turn(attempt, run_id, step, **host)

    async def _turn(self, attempt: AttemptRef, run_id: str, step: int, **host: Any) -> None:
        await self.ledger.commit_turn(
            attempt,
            run_id,
            step=step,
            observation=Observation(screenshot=artifact(f"{attempt.rollout_key}/{step}")),
            actions=[] if step == 0 else [{"status": "ok"}],
            started_at=1_700_000_000.0,
            **host,
        )

    async def run(self, key: str, run_id: str | None = None, *, score: float = 1.0, steps: int = 2) -> Finalized:
        """A whole episode of one attempt that is scored."""
        run_id = run_id or uuid.uuid4().hex
        claimed = await self.claim(key, run_id)
        assert claimed.status == "claimed"
        for step in range(steps + 1):
            await self.step(key, claimed.attempt_index, run_id, step, "DONE" if step == steps else None)
        await self.evaluate(key, claimed.attempt_index, run_id, score)
        return await self.end(key, claimed.attempt_index, run_id)

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
