"""Knobs of older agents: what they became, and which are gone (upstream contract §4 end, §1.7.15)."""

from typing import Any

REMOVED = {
    "training_mode": "the purpose of a batch is its key 'purpose'",
    "training_turn_strategy": "every model call is exported, see `rollbook export training`",
}
"""Switches that changed what an episode means without anybody seeing it in its contract."""

KEEP = ("max_trajectory_length", "max_image_history_length")
HIGH = "max_live_images"
DEFAULT_KEEP = 3


def normalised(given: dict[str, Any]) -> dict[str, Any]:
    """The policy without legacy knobs: they become `history`. Raises ValueError for removed switches.

    `max_trajectory_length` and `max_image_history_length` say how many images are kept, `max_live_images` how many
    there may be before a cut; without a difference the window is fixed.
    """
    for name in sorted(REMOVED.keys() & (given.keys() | _keys(given.get("options")))):
        raise ValueError(f"'{name}' was removed and is not ignored: {REMOVED[name]}")
    legacy = {name: given[name] for name in (*KEEP, HIGH) if given.get(name) is not None}
    rest = {name: value for name, value in given.items() if name not in (*KEEP, HIGH)}
    if not legacy:
        return rest
    if "history" in rest:
        raise ValueError(f"'history' and {', '.join(map(repr, sorted(legacy)))} exclude each other; keep 'history'")
    return rest | {"history": _history(legacy)}


def _keys(value: Any) -> set[str]:
    return set(value) if isinstance(value, dict) else set()


def _history(legacy: dict[str, Any]) -> dict[str, Any]:
    for name, value in legacy.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
            raise ValueError(f"'{name}' must be a whole number of at least 1 (given: {value!r:.80})")
    kept = {int(legacy[name]) for name in KEEP if name in legacy}
    if len(kept) > 1:
        raise ValueError(f"{' and '.join(map(repr, KEEP))} contradict each other: {sorted(kept)}")
    keep = kept.pop() if kept else DEFAULT_KEEP
    high = int(legacy.get(HIGH, keep))
    if high < keep:
        raise ValueError(f"'{HIGH}' ({high}) must be at least the number of kept images ({keep})")
    if high == keep:
        return {"name": "fixed", "params": {"keep_images": keep}}
    return {"name": "hysteresis", "params": {"low_water": keep, "high_water": high}}
