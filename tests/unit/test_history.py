"""History policies against upstream's sequences and ids, and properties of all of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.history import HistoryPlan, HistoryPolicy, HistoryState, plan, replay_plan, smaller_budget


def fixed(keep: int) -> HistoryPolicy:
    return HistoryPolicy(name="fixed", params={"keep_images": keep})


def hysteresis(low: int, high: int) -> HistoryPolicy:
    return HistoryPolicy(name="hysteresis", params={"low_water": low, "high_water": high})


def sink_window(sink: int, low: int, high: int) -> HistoryPolicy:
    return HistoryPolicy(name="sink_window", params={"sink": sink, "low_water": low, "high_water": high})


def walk(policy: HistoryPolicy, turns: int) -> list[HistoryPlan]:
    """The plans of consecutive turns, each from the state that the one before left."""
    state, plans = HistoryState(), []
    for completed in range(turns):
        plans.append(plan(policy, state, completed))
        state = plans[-1].state
    return plans


def live(one: HistoryPlan) -> list[int]:
    return [turn for turn, kind in enumerate(one.dispositions) if kind == "live_image"]


FROZEN = {
    "osworld-history-policy-b7220985bd046580251603b7": fixed(1),
    "osworld-history-policy-d171b7730c73e7c384ab2b25": fixed(3),
    "osworld-history-policy-c6aa3cc4908990e7e48aa92a": fixed(10),
    "osworld-history-policy-df73e1447137486cb16fa3a6": hysteresis(3, 10),
    "osworld-history-policy-c4f9c60cd41592bec97923c8": hysteresis(1, 5),
    "osworld-history-policy-abfafbcac32b574d98e2ef69": hysteresis(5, 20),
}


@pytest.mark.parametrize(("frozen", "policy"), FROZEN.items())
def test_policy_ids_are_frozen(frozen: str, policy: HistoryPolicy) -> None:
    assert policy.policy_id == frozen


def test_fixed_keeps_the_newest() -> None:
    plans = walk(fixed(3), 8)
    assert [one.image_count for one in plans] == [1, 2, 3, 3, 3, 3, 3, 3]
    assert [one.compaction_triggered for one in plans] == [False] * 3 + [True] * 5
    assert [one.compaction_epoch for one in plans] == [0, 0, 0, 1, 2, 3, 4, 5]
    assert live(plans[7]) == [5, 6, 7]
    assert plans[7].image_window_start == 5


def test_hysteresis_grows_then_cuts() -> None:
    plans = walk(hysteresis(3, 10), 20)
    assert [one.image_count for one in plans] == [*range(1, 11), *range(3, 11), 3, 4]
    assert [turn for turn, one in enumerate(plans, 1) if one.compaction_triggered] == [11, 19]
    assert plans[-1].compaction_epoch == 2


def test_sink_window_keeps_the_first_turn() -> None:
    plans = walk(sink_window(1, 4, 4), 10)
    assert [turn + 1 for turn in live(plans[8])] == [1, 7, 8, 9]
    assert [turn + 1 for turn in live(plans[9])] == [1, 8, 9, 10]
    assert plans[9].intervals == ((0, 1), (7, 10))
    assert plans[9].recent_window_start == 7
    with pytest.raises(ValueError, match="not contiguous"):
        _ = plans[9].image_window_start


def test_sink_window_counts_the_sink_in_its_marks() -> None:
    plans = walk(sink_window(2, 4, 7), 14)
    assert [one.image_count for one in plans] == [1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6]
    assert live(plans[7]) == [0, 1, 6, 7]
    assert [one.intervals for one in plans[5:8]] == [((0, 6),), ((0, 7),), ((0, 2), (6, 8))]


def test_the_clamp_shrinks_the_recent_window_and_counts_as_a_compaction() -> None:
    entry = walk(hysteresis(3, 10), 8)[-1].state
    clamped = plan(hysteresis(3, 10), entry, 8, max_images=4)
    assert live(clamped) == [5, 6, 7, 8]
    assert (clamped.budget_clamped, clamped.compaction_triggered, clamped.compaction_epoch) == (True, True, 1)
    assert live(plan(hysteresis(3, 10), clamped.state, 9)) == [5, 6, 7, 8, 9]


def test_a_clamp_that_is_not_needed_changes_nothing() -> None:
    assert plan(fixed(3), HistoryState(), 1, max_images=2) == plan(fixed(3), HistoryState(), 1)


def test_the_clamp_keeps_the_sink_and_the_current_observation() -> None:
    assert live(replay_plan(sink_window(2, 4, 6), 9, max_images=1)) == [0, 1, 9]
    assert live(replay_plan(sink_window(2, 4, 6), 1, max_images=1)) == [0, 1]
    assert not replay_plan(sink_window(2, 4, 6), 1, max_images=1).budget_clamped


def test_after_an_overflow_the_budget_shrinks_to_sink_and_current() -> None:
    policy, budgets = sink_window(1, 4, 4), []
    used = replay_plan(policy, 9)
    while (budget := smaller_budget(policy, used)) is not None:
        budgets.append(budget)
        used = replay_plan(policy, 9, max_images=budget)
        assert used.image_count == budget
    assert budgets == [3, 2]
    assert smaller_budget(fixed(3), replay_plan(fixed(3), 0)) is None


def test_telemetry_has_the_names_of_the_contract() -> None:
    policy = sink_window(1, 4, 4)
    assert replay_plan(policy, 9, max_images=3).telemetry == {
        "prompt_snapshot_count": 3,
        "snapshot_window_start": 8,
        "snapshot_image_intervals": [[0, 1], [8, 10]],
        "snapshot_sink_size": 1,
        "snapshot_image_budget_clamped": True,
        "snapshot_compaction_triggered": True,
        "snapshot_window_min": 4,
        "snapshot_window_max": 4,
        "history_policy_id": policy.policy_id,
        "history_policy_name": "sink_window",
        "history_policy_schema_version": 1,
        "history_policy_compaction_epoch": 6,
        "history_selection_append_expected": False,
    }
    assert replay_plan(fixed(3), 0).telemetry["history_selection_append_expected"] is False
    assert replay_plan(fixed(3), 2).telemetry["history_selection_append_expected"] is True


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"name": "fixed", "params": {}}, "exactly keep_images"),
        ({"name": "fixed", "params": {"keep_images": 3, "more": 1}}, "exactly keep_images"),
        ({"name": "fixed", "params": {"keep_images": 0}}, "greater than 0"),
        ({"name": "fixed", "params": {"keep_images": True}}, "valid integer"),
        ({"name": "fixed", "params": {"keep_images": "3"}}, "valid integer"),
        ({"name": "fixed", "params": {"keep_images": 2.5}}, "valid integer"),
        ({"name": "fixed"}, "required"),
        ({"name": "fixed", "params": {"keep_images": 3}, "extra": 1}, "not permitted"),
        ({"name": "fixed", "params": {"keep_images": 3}, "schema_version": 2}, "less than or equal to 1"),
        ({"name": "newest", "params": {"keep_images": 3}}, "fixed"),
        ({"name": "hysteresis", "params": {"low_water": 3, "high_water": 3}}, "below high_water"),
        ({"name": "hysteresis", "params": {"low_water": 3}}, "exactly low_water, high_water"),
        ({"name": "sink_window", "params": {"sink": 2, "low_water": 2, "high_water": 4}}, "above sink"),
        ({"name": "sink_window", "params": {"sink": 1, "low_water": 5, "high_water": 4}}, "at least low_water"),
        ({"name": "sink_window", "params": {"sink": 0, "low_water": 2, "high_water": 4}}, "greater than 0"),
    ],
)
def test_wrong_configurations_are_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        HistoryPolicy.model_validate(raw)


def test_whole_numbers_of_other_languages_are_the_same_policy() -> None:
    raw = {"schema_version": 1.0, "name": "fixed", "params": {"keep_images": 3.0}}
    assert HistoryPolicy.model_validate(raw) == fixed(3)


def test_wrong_arguments_are_refused() -> None:
    for completed, clamp in ((-1, None), (3, 0)):
        with pytest.raises(ValueError, match="at least"):
            plan(fixed(3), HistoryState(), completed, clamp)
    with pytest.raises(ValueError, match="after turn 3"):
        plan(fixed(3), HistoryState(image_window_start=4), 3)


@st.composite
def policies(draw: st.DrawFn) -> HistoryPolicy:
    kind = draw(st.sampled_from(["fixed", "hysteresis", "sink_window"]))
    low = draw(st.integers(1, 6))
    if kind == "fixed":
        return fixed(low)
    if kind == "hysteresis":
        return hysteresis(low, draw(st.integers(low + 1, 12)))
    sink = draw(st.integers(1, 4))
    return sink_window(sink, sink + low, draw(st.integers(sink + low, 14)))


clamps = st.dictionaries(st.integers(0, 40), st.integers(1, 12))


@given(policies(), st.integers(0, 40), clamps)
def test_every_plan_is_sound_and_replayable(policy: HistoryPolicy, last: int, clamped: dict[int, int]) -> None:
    state = HistoryState()
    before: set[int] = set()
    for completed in range(last + 1):
        one = plan(policy, state, completed, clamped.get(completed))
        assert one == replay_plan(policy, completed, clamped.get(completed), clamped)
        images = set(live(one))
        assert len(one.dispositions) == completed + 1
        assert completed in images
        assert set(range(min(policy.sink, completed + 1))) <= images
        assert images == {turn for start, end in one.intervals for turn in range(start, end)}
        assert one.image_count == len(images) <= policy.high_water
        assert all(left[1] < right[0] for left, right in zip(one.intervals, one.intervals[1:], strict=False))
        if completed in clamped:
            assert len(images) <= max(clamped[completed], policy.sink + 1)
        # an image once folded never comes back, and only a compaction folds one
        assert images - {completed} <= before
        assert before <= images or one.compaction_triggered
        assert one.compaction_epoch == state.compaction_epoch + one.compaction_triggered
        assert one.telemetry["history_selection_append_expected"] == (completed > 0 and before < images)
        before, state = images, one.state


@given(policies(), st.integers(0, 60))
def test_without_a_clamp_a_cut_leaves_the_low_mark(policy: HistoryPolicy, completed: int) -> None:
    one = replay_plan(policy, completed)
    assert not one.budget_clamped
    assert not one.compaction_triggered or one.image_count == policy.low_water


@given(policies(), st.integers(0, 40))
def test_overflow_retries_end_at_the_floor(policy: HistoryPolicy, completed: int) -> None:
    used = replay_plan(policy, completed)
    for _ in range(used.image_count):
        budget = smaller_budget(policy, used)
        if budget is None:
            break
        smaller = replay_plan(policy, completed, max_images=budget)
        assert smaller.image_count == used.image_count - 1
        used = smaller
    assert used.image_count == min(completed + 1, policy.sink + 1)
