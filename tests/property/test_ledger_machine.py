"""Arbitrary interleavings of everything that may happen to a batch, against a real Postgres.

Claims, lost and duplicated deliveries, late ends, resets (a new run id with the old attempt), reconciliation, reruns,
decisions by hand, stop, relaunch, extend, cancel. After every step the audit is clean (but for rows that are not
final), no recorded end has changed, and nothing admitted was replaced by something masked.

`ROLLBOOK_PROPERTY_EXAMPLES` sets how many interleavings are tried.
"""

import asyncio
import os
import re
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from models.admission import POLICIES, AdmissionDecision
from models.batch import Control
from rollbook.errors import Fenced, InvalidInput, LedgerConflict, SpecConflict
from rollbook.ledger import Ledger
from rollbook.ledger.admission import PolicyToReapply
from tests.support.ledger import DEPLOYMENT, NAMESPACE, Kit, make_tasks, rows

T = TypeVar("T")

ROLLOUTS = st.integers(0, 2)
RUNS = st.sampled_from(["r1", "r2", "r3"])
CLAIMS = st.integers(1, 3)
ATTEMPTS = st.integers(1, 4)
SCORES = st.sampled_from([None, 0.0, 0.5, 1.0])
SMALL: dict[str, Any] = {"max_attempts": 2, "limits": {"max_steps": 2}}
ENDS: list[dict[str, Any]] = [
    {},
    {"terminal_action": "FAIL"},
    {"horizon_reached": True},
    {"evaluation_completed": False},
    {"infrastructure_failure_reason": "sandbox_lost"},
    {"infrastructure_failure_reason": "timeout", "evaluation_completed": True},
    {"infrastructure_failure_reason": "evaluator_error", "guest_failed": True},
    {"infrastructure_failure_reason": "setup_failed"},
]


class LedgerMachine(RuleBasedStateMachine):
    """One small batch; three runs per rollout that know nothing of each other."""

    runner: asyncio.Runner
    ledger: Ledger

    def __init__(self) -> None:
        super().__init__()
        self.kit = Kit(self.ledger, batch_id=f"m-{uuid.uuid4().hex[:12]}", tasks=make_tasks(3))
        self.samples = 1
        self.identity: dict[str, Any] = {}
        self.ends: dict[tuple[str, int], Any] = {}
        self.admitted: dict[str, int] = {}

    def do(self, call: Coroutine[Any, Any, T], *allowed: type[Exception]) -> T | None:
        """Run a call; permitted refusals are not failures."""
        try:
            return self.runner.run(call)
        except allowed:
            return None

    def key(self, number: int) -> str:
        task = self.kit.tasks[number]
        return f"{self.kit.batch_id}/{task.domain}/{task.task_id}/0"

    def register(self, *, extend: bool = False) -> None:
        changes = SMALL | {"samples": self.samples, "extend": extend, "tasks": {"exclude_ids": []}}
        self.do(self.kit.register(uuid.uuid4().hex, **changes, **self.identity))

    @initialize(trainer=st.booleans())
    def plan(self, trainer: bool) -> None:
        self.do(self.ledger.register_task_set("tasks", self.kit.tasks))
        if trainer:
            groups = {task.task_id: f"g-{task.task_id}" for task in self.kit.tasks}
            event = {"sampling_event_id": f"event-{self.kit.batch_id}", "source_group_ids": groups}
            self.identity = {"identity": event}
        self.register()

    @rule(number=ROLLOUTS, run=RUNS, n=CLAIMS)
    def claim(self, number: int, run: str, n: int) -> None:
        key = self.key(number)
        first = self.do(self.kit.claim(key, f"{key}-{run}", n), Fenced)
        if first is not None and first.status == "claimed":
            again = self.do(self.kit.claim(key, f"{key}-{run}", n))
            assert again == first, "a duplicated claim got another attempt"

    @rule(number=ROLLOUTS, run=RUNS, attempt=ATTEMPTS, step=st.integers(0, 2))
    def act(self, number: int, run: str, attempt: int, step: int) -> None:
        key = self.key(number)
        self.do(self.kit.step(key, attempt, f"{key}-{run}", step), Fenced)

    @rule(number=ROLLOUTS, run=RUNS, attempt=ATTEMPTS, score=SCORES)
    def evaluate(self, number: int, run: str, attempt: int, score: float | None) -> None:
        key = self.key(number)
        self.do(self.kit.evaluate(key, attempt, f"{key}-{run}", score), Fenced)

    @rule(number=ROLLOUTS, run=RUNS, attempt=ATTEMPTS, facts=st.sampled_from(ENDS), twice=st.booleans())
    def end(self, number: int, run: str, attempt: int, facts: dict[str, Any], twice: bool) -> None:
        key = self.key(number)
        for _ in range(1 + twice):
            try:
                self.runner.run(self.kit.end(key, attempt, f"{key}-{run}", **facts))
            except Fenced:
                return
            except LedgerConflict as error:
                # two answers to one step, or an end without supporting evidence: refused
                if not re.search("ended already, with other facts|did not end so|step limit", str(error)):
                    raise
                return

    @rule(number=ROLLOUTS, run=RUNS, score=SCORES)
    def whole_episode(self, number: int, run: str, score: float | None) -> None:
        """A fresh run from claim to end: what keeps the machine from wandering among refusals."""
        key = self.key(number)
        run_id = f"{key}-{run}-{uuid.uuid4().hex[:6]}"
        claim = self.do(self.kit.claim(key, run_id), Fenced)
        if claim is None or claim.status != "claimed":
            return
        self.do(self.kit.step(key, claim.attempt_index, run_id, 0))
        self.do(self.kit.evaluate(key, claim.attempt_index, run_id, score))
        facts = ENDS[0] if score is not None else ENDS[6]
        done = self.do(self.kit.end(key, claim.attempt_index, run_id, **facts))
        assert done is not None
        assert done.score == score

    @rule(numbers=st.lists(ROLLOUTS, max_size=3))
    def queue(self, numbers: list[int]) -> None:
        self.do(self.ledger.mark_queued([self.key(number) for number in numbers]))

    @rule(number=ROLLOUTS, attempt=ATTEMPTS)
    def workflow_is_gone(self, number: int, attempt: int) -> None:
        if self.do(self.ledger.close_reconciled(self.key(number), attempt, "gone")) is None:
            self.do(self.ledger.requeue(self.key(number)))

    @rule()
    def suspect(self) -> None:
        found = self.do(self.ledger.suspects(DEPLOYMENT, NAMESPACE, -1))
        assert found is not None
        for row in found:
            if row.batch_id == self.kit.batch_id:
                assert (row.attempt_index is None) == (row.run_id == "")
                self.do(self.ledger.count_missing(row.rollout_key, row.run_id))

    @rule(which=st.sampled_from(["masked", "failed", "all"]), supersede=st.booleans())
    def rerun(self, which: Any, supersede: bool) -> None:
        ask = self.ledger.request_rerun
        asked = self.do(
            ask(self.kit.batch_id, which, reason="r", requested_by="machine", supersede=supersede), InvalidInput
        )
        assert which == "all" or asked is not None, "masked rows need no supersede"

    @rule(number=ROLLOUTS, admitted=st.booleans())
    def decide(self, number: int, admitted: bool) -> None:
        decision = AdmissionDecision(policy_id="manual", admitted=admitted, reason="by hand")
        key = self.key(number)
        attempt = self.do(self.ledger.decide_admission(key, decision, decided_by="machine"), InvalidInput)
        if attempt is not None and not admitted:
            self.admitted.pop(key, None)

    @rule(policy_id=st.sampled_from(sorted(POLICIES)), override=st.booleans())
    def redecide(self, policy_id: str, override: bool) -> None:
        rule_ = PolicyToReapply(policy_id, "a rule for all", "machine", override)
        self.do(self.ledger.reapply_policy(self.kit.batch_id, rule_, chunk=2))
        again = self.do(self.ledger.reapply_policy(self.kit.batch_id, rule_))
        assert again is not None
        assert again.admitted + again.masked + again.flips == 0, "decided twice by the same rule"
        query = "SELECT rollout_key FROM rollout_result WHERE batch_id = :b AND state = 'final' AND NOT admitted"
        for row in self.do(rows(self.ledger, query, b=self.kit.batch_id)) or []:
            self.admitted.pop(row["rollout_key"], None)

    @rule()
    def somebody_else_takes_the_event(self) -> None:
        """Another batch with the same sampling event is refused, whatever became of the first."""
        if self.identity:
            other = Kit(self.ledger, batch_id=f"{self.kit.batch_id}-other", tasks=self.kit.tasks)
            try:
                self.runner.run(other.register(uuid.uuid4().hex, tasks={"exclude_ids": []}, **self.identity))
            except SpecConflict:
                return
            raise AssertionError("two batches have one identity")

    @rule(verb=st.sampled_from(["pause", "resume", "stop"]))
    def control(self, verb: Any) -> None:
        self.do(self.ledger.set_control(Control(batch_id=self.kit.batch_id, verb=verb)))

    @rule()
    def relaunch(self) -> None:
        self.register()

    @rule()
    def extend(self) -> None:
        if self.samples < 3:
            self.samples += 1
            self.register(extend=True)

    @rule()
    def grow_without_asking(self) -> None:
        refused = False
        try:
            changes = SMALL | {"samples": self.samples + 1, **self.identity}
            self.runner.run(self.kit.register(uuid.uuid4().hex, **changes))
        except SpecConflict:
            refused = True
        assert refused

    @rule()
    def cancel(self) -> None:
        self.do(self.ledger.close_open(self.kit.batch_id, "enough", chunk=2))
        assert self.do(self.ledger.batch_is_whole(self.kit.batch_id))
        report = self.do(self.ledger.audit(self.kit.batch_id))
        assert report is not None
        assert report.ok, report.findings

    @invariant()
    def the_audit_is_clean(self) -> None:
        report = self.do(self.ledger.audit(self.kit.batch_id), InvalidInput)
        if report is not None:
            wrong = [finding for finding in report.findings if finding.kind != "not_final"]
            assert not wrong, wrong

    @invariant()
    def the_roll_call_adds_up(self) -> None:
        counts = self.do(self.ledger.counts(self.kit.batch_id))
        assert counts is not None
        assert counts.planned == counts.waiting + counts.running + counts.admitted + counts.masked

    @invariant()
    def only_a_trainers_admitted_rollouts_are_trained_on(self) -> None:
        query = "SELECT trainable, runtime_admitted, training_reason FROM training_rows WHERE batch_id = :b"
        for row in self.do(rows(self.ledger, query, b=self.kit.batch_id)) or []:
            assert not row["trainable"] or (self.identity and row["runtime_admitted"])
            assert self.identity or row["training_reason"] in ("caller_owned_rollout_identity_unavailable", "by hand")

    @invariant()
    def no_end_ever_changes(self) -> None:
        query = "SELECT * FROM outcome WHERE rollout_key LIKE :batch ORDER BY 1, 2"
        found = self.do(rows(self.ledger, query, batch=f"{self.kit.batch_id}/%")) or []
        now = {(row["rollout_key"], row["attempt_index"]): row["row_digest"] for row in found}
        assert self.ends.items() <= now.items()
        self.ends = now

    @invariant()
    def nothing_masked_replaces_something_admitted(self) -> None:
        query = "SELECT rollout_key, selected_attempt, admitted FROM rollout_result WHERE batch_id = :b"
        for row in self.do(rows(self.ledger, query, b=self.kit.batch_id)) or []:
            key = row["rollout_key"]
            if key in self.admitted and row["selected_attempt"] != self.admitted[key]:
                (new,) = self.do(
                    rows(
                        self.ledger,
                        "SELECT runtime_eligible FROM outcome WHERE rollout_key = :key AND attempt_index = :index",
                        key=key,
                        index=row["selected_attempt"],
                    )
                ) or [None]
                assert new is not None
                assert new["runtime_eligible"]
            if row["admitted"]:
                self.admitted[key] = row["selected_attempt"]


EXAMPLES = int(os.environ.get("ROLLBOOK_PROPERTY_EXAMPLES", "8"))


@pytest.mark.parametrize("examples", [2, pytest.param(EXAMPLES, marks=pytest.mark.slow)])
def test_any_interleaving_keeps_the_roll_call(ledger_url: str, examples: int) -> None:
    with asyncio.Runner() as runner:
        ledger = Ledger.connect(ledger_url, pool_size=2)

        class Bound(LedgerMachine):
            pass

        Bound.runner, Bound.ledger = runner, ledger
        try:
            run_state_machine_as_test(
                Bound,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    print_blob=True,
                ),
            )
        finally:
            runner.run(ledger.aclose())
