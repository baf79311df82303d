"""History policies: the choice of past turns that stay in the prompt as images.

Pure, so that it can be replayed: the plan of a turn follows from the policy, the number of completed turns, and the
clamps that earlier turns needed. Turns are counted from 0: with `n` completed turns, turn `n` is the current
observation.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from models.base import Input, Wire
from models.identity import short_id

PolicyName = Literal["fixed", "hysteresis", "sink_window"]
Disposition = Literal["live_image", "text"]
Interval = tuple[int, int]
"""Half-open range of turns."""

_PARAMS: dict[str, tuple[str, ...]] = {
    "fixed": ("keep_images",),
    "hysteresis": ("low_water", "high_water"),
    "sink_window": ("sink", "low_water", "high_water"),
}


class HistoryPolicy(Input):
    """The number of images in a prompt.

    `fixed` keeps the newest `keep_images`. `hysteresis` lets the window grow to `high_water`, then cuts it to
    `low_water`, so that most prompts extend the one before. `sink_window` does the same but never drops the first
    `sink` turns; its marks count all images, the sink included.
    """

    schema_version: int = Field(default=1, ge=1, le=1)
    name: PolicyName
    params: dict[str, PositiveInt]

    @field_validator("params", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        """Read 4.0 as 4, as in every other number of an input."""
        if not isinstance(value, dict):
            return value
        return {key: int(v) if isinstance(v, float) and v.is_integer() else v for key, v in value.items()}

    @model_validator(mode="after")
    def _valid_params(self) -> Self:
        required = _PARAMS[self.name]
        if set(self.params) != set(required):
            raise ValueError(f"params of {self.name} must be exactly {', '.join(required)}")
        if self.name == "hysteresis" and self.low_water >= self.high_water:
            raise ValueError("params: low_water must be below high_water")
        if self.name == "sink_window" and not self.sink < self.low_water <= self.high_water:
            raise ValueError("params: low_water must be above sink, and high_water at least low_water")
        return self

    @property
    def sink(self) -> int:
        """First turns that always stay as images."""
        return self.params.get("sink", 0)

    @property
    def low_water(self) -> int:
        """Images left after a cut."""
        return self.params["keep_images"] if self.name == "fixed" else self.params["low_water"]

    @property
    def high_water(self) -> int:
        """Most images of a prompt."""
        return self.params["keep_images"] if self.name == "fixed" else self.params["high_water"]

    @property
    def policy_id(self) -> str:
        """`osworld-history-policy-…`, derived from the configuration; the ids in use are frozen by a test."""
        config = {"schema_version": self.schema_version, "name": self.name, "params": self.params}
        return short_id("osworld-history-policy", config)


class HistoryState(Wire):
    """State of a trajectory between two turns."""

    image_window_start: NonNegativeInt = 0
    """First turn of the recent window; the sink is outside it."""
    compaction_epoch: NonNegativeInt = 0
    """Compactions so far."""


class HistoryPlan(Wire):
    """The decision for the prompt of one turn."""

    policy_id: str
    completed_turns: NonNegativeInt
    dispositions: tuple[Disposition, ...]
    """One per turn, the current observation (always an image) last."""
    intervals: tuple[Interval, ...]
    """The turns that stay as images: ascending, disjoint, never adjacent."""
    recent_window_start: NonNegativeInt
    compaction_triggered: bool
    compaction_epoch: NonNegativeInt
    """Compactions so far, this one included."""
    budget_clamped: bool = False
    """`max_images` cut deeper than the policy."""
    telemetry: dict[str, Any] = {}
    """Flat facts under upstream's names, kept with each model call."""

    @property
    def image_count(self) -> int:
        """Images in the prompt."""
        return sum(end - start for start, end in self.intervals)

    @property
    def image_window_start(self) -> int:
        """First image turn. Raises ValueError when the images are not one window: read `intervals` instead."""
        if len(self.intervals) != 1:
            raise ValueError("the images are not contiguous; use intervals or recent_window_start")
        return self.intervals[0][0]

    @property
    def state(self) -> HistoryState:
        """State for the next turn, once this plan was used."""
        return HistoryState(image_window_start=self.recent_window_start, compaction_epoch=self.compaction_epoch)


def plan(
    policy: HistoryPolicy, state: HistoryState, completed_turns: int, max_images: int | None = None
) -> HistoryPlan:
    """Decide turns 0..completed_turns, the current observation being the last.

    `max_images` (>= 1) clamps the prompt after a context overflow: the sink stays, the recent window shrinks, and the
    current observation is never dropped. Raises ValueError for a negative turn, a clamp below 1, or a state from the
    future.
    """
    moved, triggered, clamped = _advance(policy, state, completed_turns, max_images)
    turns, start = completed_turns + 1, moved.image_window_start
    intervals = _merged([(0, min(policy.sink, turns)), (start, turns)])
    live = {turn for first, end in intervals for turn in range(first, end)}
    return HistoryPlan(
        policy_id=policy.policy_id,
        completed_turns=completed_turns,
        dispositions=tuple("live_image" if turn in live else "text" for turn in range(turns)),
        intervals=intervals,
        recent_window_start=start,
        compaction_triggered=triggered,
        compaction_epoch=moved.compaction_epoch,
        budget_clamped=clamped,
        telemetry={
            "prompt_snapshot_count": len(live),
            "snapshot_window_start": start,
            "snapshot_image_intervals": [list(interval) for interval in intervals],
            "snapshot_sink_size": policy.sink,
            "snapshot_image_budget_clamped": clamped,
            "snapshot_compaction_triggered": triggered,
            "snapshot_window_min": policy.low_water,
            "snapshot_window_max": policy.high_water,
            "history_policy_id": policy.policy_id,
            "history_policy_name": policy.name,
            "history_policy_schema_version": policy.schema_version,
            "history_policy_compaction_epoch": moved.compaction_epoch,
            "history_selection_append_expected": completed_turns > 0 and not triggered,
        },
    )


def replay_plan(
    policy: HistoryPolicy,
    completed_turns: int,
    max_images: int | None = None,
    earlier_clamps: Mapping[int, int] | None = None,
) -> HistoryPlan:
    """The same plan, recomputed from turn 0.

    `max_images` clamps this turn only; `earlier_clamps` gives, by completed turns, the clamp under which each earlier
    turn was finally accepted (absent where it needed none).
    """
    clamps, state = earlier_clamps or {}, HistoryState()
    for turn in range(completed_turns):
        state, _, _ = _advance(policy, state, turn, clamps.get(turn))
    return plan(policy, state, completed_turns, max_images)


def smaller_budget(policy: HistoryPolicy, used: HistoryPlan) -> int | None:
    """`max_images` for the next try after a context overflow; None when the prompt cannot shrink.

    One image fewer, down to the sink and the current observation. Plan again from the state that the turn began with.
    """
    smaller = used.image_count - 1
    return smaller if smaller >= policy.sink + 1 else None


def _advance(
    policy: HistoryPolicy, state: HistoryState, completed_turns: int, max_images: int | None
) -> tuple[HistoryState, bool, bool]:
    """The state after this turn's decision, whether it was a compaction, whether the clamp made it one."""
    if completed_turns < 0 or (max_images is not None and max_images < 1):
        raise ValueError("completed_turns must be at least 0 and max_images at least 1")
    turns = completed_turns + 1
    if state.image_window_start >= turns:
        raise ValueError(f"state: image_window_start {state.image_window_start} is after turn {completed_turns}")
    kept, entry = min(policy.sink, turns), state.image_window_start
    start = entry
    if kept + turns - max(start, kept) > policy.high_water:
        start = turns - (policy.low_water - policy.sink)
    clamped = False
    if max_images is not None:
        smaller = max(kept, turns - max(1, max_images - policy.sink))
        clamped = smaller > max(start, kept)
        start = smaller if clamped else start
    triggered = start != entry
    epoch = state.compaction_epoch + int(triggered)
    return HistoryState(image_window_start=start, compaction_epoch=epoch), triggered, clamped


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted, without empty ones, overlapping and adjacent ones joined."""
    joined: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)
