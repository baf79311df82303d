"""The Episode workflow on fake activities: its calls, their order, and its reports to the ledger."""

from collections.abc import Callable
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from models import attributes, names
from models.episode import Acted, AttemptRef, Claimed, ClaimRequest, Decision, EpisodeResult, Evaluated, Examined
from tests.doubles.fake_activities import FakeActivities, fails
from tests.support.episodes import BEGIN, CLICK, CLOSE, SCORE, begin, play


async def test_an_episode_from_claim_to_admission(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    result = await play(env, fakes)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, names.DECIDE, *SCORE, *CLOSE]
    assert fakes.activity_ids == [
        "claim-1",
        "a1-start-sandbox",
        "a1-prepare-task",
        "a1-observe",
        "a1-s001-decide",
        "a1-s001-act",
        "a1-s002-decide",
        "a1-run-postconfig",
        "a1-evaluate",
        "a1-examine-desktop",
        "a1-finalize",
        "a1-stop-sandbox",
    ]
    assert result == EpisodeResult(
        rollout_key=result.rollout_key,
        status="final",
        attempts=1,
        termination_reason="agent_done",
        admitted=True,
        score=1.0,
        reward=1.0,
    )
    assert fakes.requests[names.EVALUATE][0].terminal_action == "DONE"
    assert fakes.outcome.steps == 2


async def test_fail_is_an_answer(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.decisions = [Decision(terminal_action="FAIL")]
    fakes.score = 0.0
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted, result.score) == ("agent_fail", True, 0.0)
    assert names.ACT not in fakes.log


async def test_actions_before_a_terminal_one_are_run(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.decisions = [Decision(action_count=2, terminal_action="DONE")]
    await play(env, fakes)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, *SCORE, *CLOSE]


async def test_the_horizon_is_the_runners(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.decisions = [CLICK]
    fakes.score = 0.25
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted, result.score) == ("max_steps", True, 0.25)
    # the last action is run, and what it did is what gets evaluated
    assert fakes.log == [*BEGIN, *([names.DECIDE, names.ACT] * 5), *SCORE, *CLOSE]
    assert fakes.outcome.facts.horizon_reached
    assert fakes.outcome.steps == 5


async def test_a_terminal_action_in_the_last_step_is_no_horizon(
    env: WorkflowEnvironment, fakes: FakeActivities
) -> None:
    fakes.decisions = [*([CLICK] * 4), Decision(terminal_action="DONE")]
    result = await play(env, fakes)
    assert result.termination_reason == "agent_done"
    assert not fakes.outcome.facts.horizon_reached


async def test_output_that_stays_unreadable_is_scored(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.decisions = [CLICK, Decision(policy_stop_reason="model_response_unparseable")]
    fakes.score = 0.0
    result = await play(env, fakes)
    assert (result.termination_reason, result.admitted) == ("model_response_unparseable", True)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, names.DECIDE, *SCORE, *CLOSE]


async def test_a_step_without_an_action_looks_again(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    """Upstream does not: its next decision sees a stale screen."""
    fakes.decisions = [Decision(action_count=0), Decision(terminal_action="DONE")]
    changed = Acted.model_validate(
        {"observation": {"screenshot": {"sha256": "f" * 64, "size_bytes": 2, "media_type": "x"}}}
    )

    async def look(request: Any) -> Acted:
        return changed

    fakes.on[names.ACT] = look
    await play(env, fakes)
    assert fakes.log == [*BEGIN, names.DECIDE, names.ACT, names.DECIDE, *SCORE, *CLOSE]
    first, second = fakes.requests[names.DECIDE]
    assert second.observation == changed.observation != first.observation


@pytest.mark.parametrize(("said", "status"), [("final", "already final"), ("stopping", "stopping")])
async def test_nothing_is_done_where_nothing_is_due(
    env: WorkflowEnvironment, fakes: FakeActivities, said: str, status: str
) -> None:
    async def nothing(request: Any) -> Claimed:
        return Claimed.model_validate({"status": said})

    fakes.on[names.CLAIM] = nothing
    result = await play(env, fakes)
    assert (result.status, result.attempts) == (status, 0)
    assert fakes.log == [names.CLAIM]


async def test_the_temporal_ui_can_filter_by_outcome(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    handle = await begin(env, fakes)
    await handle.result()
    found = {pair.key.name: pair.value for pair in (await handle.describe()).typed_search_attributes}
    assert found[attributes.TERMINATION] == "agent_done"
    assert found[attributes.OUTCOME] == "admitted"
    assert found[attributes.ADMITTED] is True
    assert found[attributes.SCORE] == 1.0
    assert (found[attributes.ATTEMPT], found[attributes.STEPS]) == (1, 2)


FENCED_AT = [*BEGIN[1:], names.DECIDE, names.ACT, *SCORE, names.EXAMINE_DESKTOP, names.FINALIZE]


async def test_a_claim_that_is_refused_ends_the_run(env: WorkflowEnvironment, fakes: FakeActivities) -> None:
    fakes.on[names.CLAIM] = fails(names.FENCED)
    result = await play(env, fakes)
    assert (result.status, result.attempts) == ("superseded", 1)
    assert fakes.log == [names.CLAIM]


@pytest.mark.parametrize("activity", FENCED_AT)
async def test_a_run_that_was_overtaken_cleans_up_and_says_nothing(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str
) -> None:
    fakes.on[activity] = fakes.on[names.FINALIZE] = fails(names.FENCED)
    result = await play(env, fakes)
    assert (result.status, result.termination_reason, result.admitted) == ("superseded", None, False)
    assert (fakes.count(names.CLAIM), fakes.count(names.STOP_SANDBOX)) == (1, 1)
    assert (names.EVALUATE in fakes.log) is (activity in (names.EVALUATE, *CLOSE))


@pytest.mark.parametrize("resets", [1, 2])
@pytest.mark.parametrize("activity", FENCED_AT)
async def test_a_run_whose_attempt_is_anothers_claims_one_of_its_own(
    env: WorkflowEnvironment, fakes: FakeActivities, activity: str, resets: int
) -> None:
    """A history after `temporal workflow reset`: it holds the claims of runs that are gone."""

    async def claim(request: ClaimRequest) -> Claimed:
        claimed = fakes.claimed(request.n)
        return claimed.model_copy(update={"run_id": f"gone-{request.n}"}) if request.n <= resets else claimed

    def of_another_run(done: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def work(request: Any) -> Any:
            attempt = request if isinstance(request, AttemptRef) else request.attempt
            return await fails(names.FENCED)(request) if attempt.attempt_index <= resets else done(request)

        return work

    usual = {
        names.START_SANDBOX: fakes.desktop,
        names.OBSERVE: lambda request: fakes.seen(),
        names.DECIDE: lambda request: fakes.decisions[min(request.step, len(fakes.decisions)) - 1],
        names.ACT: lambda request: fakes.acted(),
        names.EVALUATE: lambda request: Evaluated(completed=True, score=1.0),
        names.EXAMINE_DESKTOP: lambda request: Examined(),
        names.FINALIZE: fakes.finalized,
    }
    fakes.on |= {name: of_another_run(usual.get(name, lambda request: None)) for name in (activity, names.FINALIZE)}
    fakes.on[names.CLAIM] = claim
    result = await play(env, fakes)
    assert (result.status, result.termination_reason, result.admitted) == ("final", "agent_done", True)
    claims = list(range(1, resets + 2))
    assert [request.n for request in fakes.requests[names.CLAIM]] == claims
    assert [attempt.attempt_index for attempt in fakes.requests[names.STOP_SANDBOX]] == claims
