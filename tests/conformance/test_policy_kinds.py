"""Every registered policy kind: its contract is stable, racing tries agree on one stored call, errors name the field.

The ledger is a double that holds rows in memory: it proves nothing about SQL. The model behind `openai` is the test
server. A kind of your own joins by an entry in CASES.
"""

import hashlib
import io
import uuid
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from typing import Any, cast

import pytest
from PIL import Image

from models.contract import Contract, Resolved
from models.episode import Observation
from models.evidence import ArtifactRef
from models.identity import digest
from models.policy import PolicySpec
from models.spec import BatchSpec, contract_of, read_spec
from rollbook.errors import InvalidInput, RollbookError
from rollbook.ledger import Ledger
from rollbook.ledger.reader import RecordedAttempt
from rollbook.ledger.records import AttemptContext, CallRecord
from rollbook.policies import registry
from rollbook.policies.base import Answer, CallLog, Policy, PolicyKind, Sources, Turn, summary_of
from rollbook.policies.client import EndpointProfile, ModelClients
from rollbook.policies.registry import contract_for, policy_for, policy_kind, policy_kinds, resolve_policy
from rollbook.policies.scripted import Scripts
from tests.doubles.model_server import ModelServer
from tests.support.model_server import DONE

TASK = "task-1"
SCRIPT = {"schema_version": 1, "tasks": {TASK: {"steps": [{"actions": ["pyautogui.click(1, 2)", "DONE"]}]}}}

CASES: dict[str, dict[str, Any]] = {
    "scripted": {"kind": "scripted", "script": "solve"},
    "noop": {"kind": "noop"},
    "replay": {"kind": "replay", "rollout": "earlier/os/task-1/0"},
    "openai": {"kind": "openai", "endpoint": "test", "model": "double-vl"},
}
"""A spec of each kind."""

WRONG = [
    ({"kind": "scripted", "script": "missing"}, "policy.script"),
    ({"kind": "replay", "rollout": "missing"}, "rollout"),
    ({"kind": "openai", "endpoint": "elsewhere", "model": "m"}, "policy.endpoint"),
    ({"kind": "openai", "endpoint": "test", "model": "m", "protocol": "unheard-of"}, "policy.protocol"),
    ({"kind": "openai", "endpoint": "test", "model": "m", "sampling": {"extra": {"n": 2}}}, "policy.sampling.extra"),
    ({"kind": "acme.greedy"}, "policy.kind"),
]
"""Specs that are well formed, but mean nothing here; and the field that the error names."""


class MemoryLedger(Ledger):
    """The ledger calls of policy kinds, in memory."""

    def __init__(self, policy: dict[str, Any]) -> None:
        self.bodies = {"d" * 64: SCRIPT}
        self.policy = policy

    async def find_script(self, ref: str) -> str:
        if ref != "solve":
            raise InvalidInput(f"policy.script: there is no script {ref!r}")
        return "d" * 64

    async def script_body(self, script_digest: str) -> dict[str, Any]:
        return self.bodies[script_digest]

    async def register_script(self, name: str, body: dict[str, Any]) -> Any:
        self.bodies[digest(body)] = body

    async def recorded(self, rollout_key: str, attempt: int | None = None) -> RecordedAttempt:
        if rollout_key == "missing":
            raise InvalidInput(f"rollout: the ledger has no rollout {rollout_key!r}")
        call = CallRecord(
            step=1,
            parse_attempt=1,
            policy_kind="noop",
            completed=True,
            accepted=True,
            decides=True,
            actions=["WAIT"],
            terminal_action="DONE",
            summary="",
            row_digest="d",
        )
        rollout = {"rollout_key": rollout_key, "task_id": TASK}
        return RecordedAttempt(rollout, {"attempt_index": 1}, None, [call], [], {})

    async def launched_spec(self, batch_id: str) -> dict[str, Any]:
        return {"policy": self.policy}


class MemoryLog:
    """The log of step 1: of racing tries, the call that is committed first counts. Both began before there was any."""

    def __init__(self) -> None:
        self.rows: dict[int, CallRecord] = {}

    async def until_now(self) -> list[CallRecord]:
        return []

    async def commit(self, answer: Answer, parse_attempt: int = 1) -> CallRecord:
        row = CallRecord(
            step=1,
            parse_attempt=parse_attempt,
            policy_kind="noop",
            row_digest="d",
            actions=answer.actions,
            terminal_action=answer.terminal_action,
            policy_stop_reason=answer.policy_stop_reason,
            completed=answer.completed,
            accepted=answer.accepted,
            decides=answer.accepted or answer.policy_stop_reason is not None,
            summary=summary_of(answer),
            parse_error=answer.parse_error,
            failure_kind=answer.failure_kind,
            telemetry=answer.telemetry,
            said=answer.said,
        )
        return self.rows.setdefault(parse_attempt, row)


class World:
    """The services that a worker gives a policy, and one attempt at its first step."""

    def __init__(self, policy: dict[str, Any], models: ModelClients) -> None:
        self.ledger = MemoryLedger(policy)
        self.scripts = Scripts()
        self.models = models
        self.spec = read_spec({"task_set": "demo", "policy": policy})

    async def resolved(self, spec: BatchSpec | None = None) -> Resolved:
        names = await resolve_policy(spec or self.spec, self.ledger, endpoints=self.models.names, register=True)
        return Resolved(**names, evaluator_revision="null", null_desktop=True)

    async def contract(self) -> Contract:
        return contract_for(self.spec, await self.resolved())

    async def decide(self, log: CallLog) -> CallRecord:
        """As the activity does it."""
        context = AttemptContext(
            rollout_key=f"b/os/{TASK}/0",
            attempt_index=1,
            batch_id="b",
            deployment_id="d",
            domain="os",
            task_id=TASK,
            sample=0,
            task_digest="0" * 64,
            contract=await self.contract(),
            contract_digest="0" * 64,
            task={"instruction": "Finish."},
            execution_id=uuid.UUID(int=1),
            trajectory_rollout_id="r",
        )
        screen = _screen()
        sha256 = hashlib.sha256(screen).hexdigest()

        async def read(_: str) -> bytes:
            return screen

        seen = Observation(screenshot=ArtifactRef(sha256=sha256, size_bytes=len(screen), media_type="image/png"))
        policy = await policy_for(context, cast(Sources, self))
        return await policy.decide(Turn(1, context, seen, read), log)


def _screen() -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (64, 48), "white").save(target, "PNG")
    return target.getvalue()


@pytest.fixture
async def models() -> AsyncIterator[ModelClients]:
    async with ModelServer(lambda call: DONE) as server:
        profile = EndpointProfile(name="test", base_url=server.url)
        clients = ModelClients({"test": profile})
        yield clients
        await clients.close()


def test_every_registered_kind_is_covered_and_documented() -> None:
    assert set(CASES) == set(policy_kinds())
    with open("docs/reference/batch-spec.md") as page:
        text = page.read()
    assert [kind for kind in policy_kinds() if f"`{kind}`" not in text] == []


@pytest.mark.parametrize("name", CASES)
async def test_racing_tries_of_a_step_agree_on_the_stored_call(name: str, models: ModelClients) -> None:
    world, log = World(CASES[name], models), MemoryLog()
    first = await world.decide(log)
    assert await world.decide(log) is first
    assert first.decides
    assert not set(first.actions) & {"DONE", "FAIL"}, "a terminal action is not an action"
    assert len(log.rows) == 1


@pytest.mark.parametrize("name", CASES)
async def test_the_contract_is_the_same_whenever_it_is_made(name: str, models: ModelClients) -> None:
    world = World(CASES[name], models)
    contract = await world.contract()
    assert contract.policy.kind == name
    assert (await world.contract()).digest == contract.digest
    assert contract_for(world.spec, contract.all_resolved).digest == contract.digest
    stored = read_spec(world.spec.model_dump(mode="json"))
    assert contract_of(stored, await world.resolved(stored)) == contract
    assert contract.agent_contract_id.startswith("agent-contract-")


@pytest.mark.parametrize("name", CASES)
async def test_a_pinned_spec_means_the_same_contract(name: str, models: ModelClients) -> None:
    world = World(CASES[name], models)
    contract = await world.contract()
    policy = world.spec.model_dump(mode="json")["policy"]
    pinned = policy_kind(name).pin(policy, contract.policy)
    pinned["script"] = "solve" if "script" in pinned else None  # the double knows names only
    again = World({key: value for key, value in pinned.items() if value is not None}, models)
    assert await again.contract() == contract


@pytest.mark.parametrize(("policy", "field"), WRONG)
async def test_an_error_is_typed_and_names_the_field(policy: dict[str, Any], field: str, models: ModelClients) -> None:
    with pytest.raises(RollbookError, match=f"^{field.replace('.', '[.]')}: "):
        await World(policy, models).resolved()


# A kind of another package: this class and one line of its pyproject.toml are all that it takes.


class GreedySpec(PolicySpec):
    clicks: int


class GreedyKind(PolicyKind[GreedySpec]):
    """Clicks until it has clicked enough."""

    name = "acme.greedy"
    spec = GreedySpec

    async def open(self, context: AttemptContext, sources: Sources) -> Policy:
        return Greedy(context.contract.policy.document["clicks"])


class Greedy:
    def __init__(self, clicks: int) -> None:
        self.clicks = clicks

    async def decide(self, turn: Turn, log: CallLog) -> CallRecord:
        return await log.commit(Answer(actions=["pyautogui.click()"] * self.clicks, model_name="greedy"))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    entry = EntryPoint("greedy", f"{__name__}:GreedyKind", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == registry.GROUP else [])
    policy_kinds.cache_clear()
    yield
    policy_kinds.cache_clear()


@pytest.mark.usefixtures("installed")
async def test_a_kind_of_another_package_needs_its_module_and_one_line(models: ModelClients) -> None:
    world = World({"kind": "acme.greedy", "clicks": 2}, models)
    contract = await world.contract()
    assert contract.policy.document == {"kind": "acme.greedy", "clicks": 2}
    assert contract_for(world.spec, contract.all_resolved) == contract
    assert read_spec(world.spec.model_dump(mode="json")) == world.spec
    assert (await world.decide(MemoryLog())).actions == ["pyautogui.click()"] * 2
    with pytest.raises(InvalidInput, match=r"^policy\.clicks: "):
        await World({"kind": "acme.greedy", "clicks": "many"}, models).resolved()
    with pytest.raises(InvalidInput, match=r"^policy\.click: unknown key.*did you mean clicks"):
        await World({"kind": "acme.greedy", "clicks": 1, "click": 1}, models).resolved()


def test_a_misspelt_built_in_kind_is_refused_without_a_worker() -> None:
    with pytest.raises(ValueError, match=r"policy\.kind: must be one of .*scripted"):
        read_spec({"task_set": "demo", "policy": {"kind": "scriptd", "script": "s"}})
