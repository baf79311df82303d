"""A model's answer that is there becomes its row, whatever is down or cancelled just then: the decide activity itself,
real HTTP, a real ledger and store, no workflow around them.
"""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.ledger import LedgerActivities
from activities.policy import PolicyActivities
from models.batch import RegisterBatch
from models.episode import AttemptRef, DecideRequest, Decision, Observation
from models.spec import read_spec
from rollbook.ledger.reader import RecordedAttempt
from rollbook.policies.base import Answer
from rollbook.policies.call_log import LedgerCallLog, Unstorable
from rollbook.sandboxes.null import PIXEL
from tests.doubles.model_server import Call, ModelServer, Reply
from tests.support.model_server import DONE, KEY, Scenario, endpoints_file, model_spec
from tests.support.system import System, running_system, small_tasks, system_settings
from tests.support.waiting import until

RUN = "run-1"
TIMEOUT_S = 5


@pytest.fixture(scope="module")
async def said() -> Scenario:
    return Scenario()


@pytest.fixture(scope="module")
async def system(
    scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str, said: Scenario
) -> AsyncIterator[System]:
    directory = scratch / "kept"
    await asyncio.to_thread(directory.mkdir)
    async with ModelServer(said, api_key=KEY) as server:
        file = endpoints_file(directory, {"test": server})
        settings = system_settings(directory, ledger_url, deployment_id, endpoints_file=file)
        async with running_system(settings, temporal_address, workers=False) as system:
            await system.register_tasks("one", small_tasks(1))
            yield system


@dataclass
class Step:
    """The first step of a claimed attempt, to be decided as a worker would."""

    system: System
    said: Scenario
    key: str
    observation: Observation
    environments: list[ActivityEnvironment] = field(default_factory=list)

    def answers(self, answer: Callable[[Call], Any]) -> None:
        self.said.answer, self.said.calls = answer, []

    async def decide(self, seconds: float = 1200, budget_s: float | None = None) -> Decision:
        """One try of the activity, within so many seconds; the episode's deadline leaves `budget_s`."""
        environment = activity_environment(seconds)
        self.environments.append(environment)
        request = DecideRequest(
            attempt=AttemptRef(rollout_key=self.key, attempt_index=1),
            step=1,
            observation=self.observation,
            budget_s=budget_s,
        )
        work = PolicyActivities(self.system.services).decide
        decided: Awaitable[Decision] = environment.run(work, request)
        return await decided

    @property
    def attempt(self) -> AttemptRef:
        return AttemptRef(rollout_key=self.key, attempt_index=1)

    async def recorded(self) -> RecordedAttempt:
        return await self.system.ledger.recorded(self.key, 1)

    async def responses(self) -> list[bytes]:
        """The raw bodies of the rows, in their order; an empty one has no artifact."""
        digests = [call.response_sha256 for call in (await self.recorded()).calls]
        return [b"" if digest is None else await self.system.artifacts.get(digest) for digest in digests]


def activity_environment(seconds: float) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    limit, now = timedelta(seconds=seconds), datetime.now(UTC)
    environment.info = dataclasses.replace(
        environment.info,
        workflow_run_id=RUN,
        scheduled_time=now,
        start_to_close_timeout=limit,
        schedule_to_close_timeout=limit,
    )
    return environment


@pytest.fixture
async def step(system: System, said: Scenario) -> Step:
    batch = f"b-{uuid.uuid4().hex[:8]}"
    spec = read_spec(model_spec("one", limits={"model_timeout_s": TIMEOUT_S}))
    request = RegisterBatch(batch_id=batch, namespace="default", spec=spec, launch_id="l")
    await activity_environment(60).run(LedgerActivities(system.services).register_batch, request)
    [row] = await system.ledger.rollouts_of(batch)
    await system.ledger.claim(row["rollout_key"], RUN, row["rollout_key"], 1)
    shot = await system.artifacts.put(PIXEL, "image/png")
    return Step(system, said, row["rollout_key"], Observation(screenshot=shot))


async def test_while_the_ledger_is_away_the_answer_waits(step: Step, ledger_url: str) -> None:
    url = make_url(ledger_url)
    name = url.database
    admin = url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)

    async def administer(*statements: str) -> None:
        async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
            for statement in statements:
                await connection.execute(statement.encode())

    async def back_later() -> None:
        await asyncio.sleep(1)
        await administer(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')

    async def away(_: Call) -> str:
        await administer(
            f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false',
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
        )
        later.append(asyncio.create_task(back_later()))
        return DONE

    later: list[asyncio.Task[None]] = []
    step.answers(away)
    assert (await step.decide()).terminal_action == "DONE"
    await asyncio.gather(*later)
    assert len(step.said.calls) == len((await step.recorded()).calls) == 1


async def test_while_the_store_is_away_the_answer_waits(step: Step) -> None:
    root = step.system.settings.state_dir / "artifacts"
    elsewhere = root.with_name("elsewhere")

    async def back_later() -> None:
        await asyncio.sleep(1)
        root.unlink()
        elsewhere.rename(root)

    async def away(_: Call) -> str:
        root.rename(elsewhere)
        root.write_text("a file where the directory was")
        later.append(asyncio.create_task(back_later()))
        return DONE

    later: list[asyncio.Task[None]] = []
    step.answers(away)
    assert (await step.decide()).terminal_action == "DONE"
    await asyncio.gather(*later)
    assert len(step.said.calls) == len(await step.responses()) == 1


async def test_a_cancel_waits_for_the_commit(step: Step, ledger_url: str) -> None:
    """Another transaction holds the rollout's row when the answer comes; the activity is cancelled meanwhile."""
    url = make_url(ledger_url).set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(url) as other:

        async def held(_: Call) -> str:
            await other.execute("SELECT 1 FROM rollout WHERE rollout_key = %s FOR UPDATE", [step.key])
            return DONE

        step.answers(held)
        deciding = asyncio.create_task(step.decide())
        await until("the commit waits for the row", lambda: waits_for_a_lock(url), 30)
        step.environments[0].cancel()
        await asyncio.sleep(0.5)
        assert not deciding.done()
        await other.rollback()
        with pytest.raises(asyncio.CancelledError):
            await deciding
    assert len((await step.recorded()).calls) == 1
    assert (await step.decide()).terminal_action == "DONE"
    assert len(step.said.calls) == 1


async def waits_for_a_lock(url: str) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with await psycopg.AsyncConnection.connect(url) as connection:
        [[count]] = await (await connection.execute(query)).fetchall()
        return bool(count)


async def test_a_cancel_while_the_model_thinks_ends_the_call_at_once(step: Step) -> None:
    step.answers(lambda _: Reply(DONE, delay_s=60))
    deciding = asyncio.create_task(step.decide())

    async def thinking() -> bool:
        return bool(step.said.calls)

    await until("the model is asked", thinking, 30)
    step.environments[0].cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await deciding
    assert (await step.recorded()).calls == []


async def test_no_call_begins_that_the_activity_would_cut(step: Step) -> None:
    """A first sample is slow; the time that is left does not suffice for a second one: the next try makes that."""

    def answer(call: Call) -> Reply:
        return Reply("no code here", delay_s=3) if call.parse_attempt == 1 else Reply(DONE)

    step.answers(answer)
    with pytest.raises(ApplicationError, match="no time is left for call 2") as error:
        await step.decide(seconds=TIMEOUT_S + 30 + 2)
    assert not error.value.non_retryable
    assert (await step.decide()).terminal_action == "DONE"
    assert [call.parse_attempt for call in step.said.calls] == [1, 2]
    assert [call.accepted for call in (await step.recorded()).calls] == [False, True]


async def test_nor_does_one_wait_longer_for_a_connection_than_it_may(step: Step) -> None:
    client = step.system.services.models.get("test")
    slots = client.profile.max_connections
    step.answers(lambda _: DONE)
    for _ in range(slots):
        await client._slots.acquire()
    with pytest.raises(ApplicationError, match=f"max_connections {slots}: none was free") as error:
        await step.decide(seconds=TIMEOUT_S + 30 + 2)
    assert not error.value.non_retryable
    for _ in range(slots):
        client._slots.release()
    assert (await step.decide()).terminal_action == "DONE"
    assert len(step.said.calls) == 1


async def test_what_no_column_takes_is_a_failed_call_with_its_body(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last resort, for unforeseen errors: here the row refuses a count, because the client let it pass."""
    monkeypatch.setattr("rollbook.policies.client.reply.ChatReply.tokens", lambda *_: "\N{SNOWMAN}")
    step.answers(lambda call: DONE)
    with pytest.raises(ApplicationError, match="the reply cannot be stored"):
        await step.decide()
    rows = (await step.recorded()).calls
    assert len(rows) == len(step.said.calls) == 5
    assert {row.failure_kind for row in rows} == {"transport_error"}
    assert all(b"terminate" in body for body in await step.responses())


async def test_what_postgres_refuses_is_not_tried_for_ever(step: Step) -> None:
    services = step.system.services
    log = LedgerCallLog(services.ledger, services.artifacts, step.attempt, RUN, 1, "openai")
    for answer, number in ((Answer(), 2**40), (Answer(telemetry={"n": 10**5000}), 1)):
        with pytest.raises(Unstorable):
            await log.commit(answer, number)
    assert (await step.recorded()).calls == []


# --- the episode's deadline within a decision ----------------------------------------------------------------


async def test_a_long_call_ends_at_the_episodes_deadline(step: Step) -> None:
    step.answers(lambda call: Reply(fault="slow"))
    for _ in range(2):  # a repeat finds the row and asks no more
        with pytest.raises(ApplicationError, match="no reply within 1 s") as raised:
            await step.decide(budget_s=1)
        assert (raised.value.type, raised.value.non_retryable) == ("timeout", True)
    [row] = (await step.recorded()).calls
    assert (row.failure_kind, (row.telemetry or {})["deadline"], len(step.said.calls)) == ("model_timeout", True, 1)


async def test_samples_of_a_step_share_what_is_left(step: Step) -> None:
    step.answers(lambda call: Reply("no code at all", delay_s=0.3))
    with pytest.raises(ApplicationError) as raised:
        await step.decide(budget_s=0.5)
    assert raised.value.type == "timeout"
    assert len((await step.recorded()).calls) < 3


async def test_the_work_of_a_step_is_its_answered_calls(step: Step) -> None:
    step.answers(lambda call: Reply(fault="server_error") if call.parse_attempt == 1 else Reply(DONE))
    decided = await step.decide()
    [failed, answered] = (await step.recorded()).calls
    assert (failed.completed, decided.worked_s) == (False, answered.latency_s)
    assert (await step.decide()).worked_s == decided.worked_s, "a repeat reports the same"


# --- what servers send --------------------------------------------------------------------------------------

NO_NUMBERS = b'{"function": {"name": "computer", "arguments": {"action": "click", "coordinate": [NaN, 1e999]}}}'


def completion(content: bytes = b'"x"', usage: bytes = b"{}", more: bytes = b"") -> bytes:
    return b'{"choices": [{"message": {"content": %s%s}, "finish_reason": "stop"}], "usage": %s}' % (
        content,
        more,
        usage,
    )


CALL = b'{"function": {"name": "computer", "arguments": {"action": "left_click", "coordinate": [1, 2]}}}'
FAILED = b'"finish_reason": "error", "error": {"message": "Provider returned error", "code": 502}'
NO_COMPLETIONS = {
    "no JSON": b"<html>" + b"x" * 20_000,
    "no object": b"[1, 2]",
    "nothing": b"",
    "a failed generation": b'{"choices": [{"message": {"content": "x", "tool_calls": [%s]}, %s}]}' % (CALL, FAILED),
}
SENT = {
    "tool calls that are no list": completion(more=b', "tool_calls": 5'),
    "NaN in arguments": completion(more=b', "tool_calls": [%s]' % NO_NUMBERS),
    "a count beyond the column": completion(usage=b'{"prompt_tokens": 1%s}' % (b"0" * 30)),
    "a count of 5,000 digits": completion(usage=b'{"prompt_tokens": %s}' % (b"9" * 5000)),
    "NaN in usage": completion(usage=b'{"prompt_tokens": NaN, "cost": 1e999}'),
    "names that are none": completion(usage=rb'{"\u0000": 1, "\udfff": 2}'),
    "deep": completion(usage=b'{"a": %s}' % (b"[" * 5000 + b"]" * 5000)),
    "a message that is a text": b'{"choices": [{"message": "%s"}]}' % (b"x" * 20_000),
    "no message": b'{"choices": [{}]}',
    "a choice that is a number": b'{"choices": [7]}',
    "NUL and half a surrogate pair": completion(rb'"\u0000\ud800"'),
    "no UTF-8": completion(b'"\xff\xfe"'),
    "long": completion(b'"%s"' % (b"x" * 2_000_000)),
    **NO_COMPLETIONS,
}


async def test_a_body_too_large_with_one_image_is_a_refusal_and_no_outcome(step: Step) -> None:
    step.answers(lambda call: Reply(fault="too_large"))
    with pytest.raises(ApplicationError, match="HTTP 413") as raised:
        await step.decide()
    assert (raised.value.type, raised.value.non_retryable) == ("model_call_failed", True)
    [row] = (await step.recorded()).calls
    assert (row.failure_kind, row.policy_stop_reason, row.completed) == ("transport_error", None, False)


@pytest.mark.parametrize("name", SENT)
async def test_each_answer_is_one_row_with_its_body(step: Step, name: str) -> None:
    step.answers(lambda call: Reply(body=SENT[name]) if call.parse_attempt == 1 else Reply(DONE))
    assert (await step.decide()).terminal_action == "DONE"
    rows = (await step.recorded()).calls
    assert len(rows) == len(step.said.calls) == 2
    assert (await step.responses())[0] == SENT[name]
    assert (rows[0].accepted, rows[1].accepted) == (False, True)
    assert rows[0].completed == (name not in NO_COMPLETIONS)
    expected = ("transport_error",) if name in NO_COMPLETIONS else ("unparseable", "empty_response")
    assert rows[0].failure_kind in expected
