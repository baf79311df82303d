"""The cause of a desktop's end, from the engine's own records. The guest has no part in them.

The engine notes each signal that a client of its API asks for before it carries it out. So a `die` without a `kill`
before it is the end of the container's first process by itself, and only the guest can bring that about.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.outcome import Cause

EVENTS_KEPT = 256
"""The engine remembers so many events, and none from before its own start."""

ENDING_SIGNALS = ("", "2", "3", "9", "15")
KILLED = 137
"""Exit code after signal 9, which the first process of a container gets from outside its namespace only."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the engine about a container."""

    action: str
    at: int
    """Nanoseconds since the epoch."""
    attributes: Mapping[str, str]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Event":
        """Read the engine's JSON."""
        actor = raw.get("Actor") or {}
        return cls(str(raw.get("Action", "")), int(raw.get("timeNano", 0)), actor.get("Attributes") or {})


def cause_of_end(details: Mapping[str, Any] | None, events: Sequence[Event], *, all_events: int) -> Cause | None:
    """The cause of a container's end; None for one that runs and never ended.

    Args:
        details: As inspected; None when it is gone.
        events: The engine's events about it, oldest first.
        all_events: Number of events that the engine remembers, of anything.
    """
    first_end = next((event for event in events if event.action == "die"), None)
    if first_end is not None:
        return _of_death(details, events, first_end)
    if details is None:
        if any(event.action == "destroy" for event in events):
            return Cause(kind="host", detail="the container was removed from outside")
        return Cause(kind="unknown", detail="the container is gone, and the engine remembers nothing of it")
    state = details["State"]
    if state.get("Error"):
        return Cause(kind="host", detail=f"the engine failed: {state['Error']}")
    if state["Status"] == "paused":
        return Cause(kind="host", detail="the container was paused from outside")
    if state.get("OOMKilled") or any(event.action == "oom" for event in events):
        return _of_memory(details)
    if state["Status"] == "running":
        return None
    if all_events < EVENTS_KEPT:  # nothing was forgotten for want of room
        return Cause(kind="host", detail="the engine was restarted since the container ended")
    return Cause(kind="unknown", detail="the engine has forgotten how the container ended")


def _of_death(details: Mapping[str, Any] | None, events: Sequence[Event], end: Event) -> Cause:
    before = [event for event in events if event.at <= end.at]
    if any(event.action == "kill" and event.attributes.get("signal", "") in ENDING_SIGNALS for event in before):
        return Cause(kind="host", detail="the container was ended from outside: the engine was asked to kill it")
    state = details["State"] if details is not None else {}
    if state.get("OOMKilled") or any(event.action == "oom" for event in before):
        return _of_memory(details)
    code = end.attributes.get("exitCode", "?")
    if code == str(KILLED):
        return Cause(kind="host", detail="its first process was killed, which nothing inside the desktop can do")
    return Cause(kind="guest", detail=f"the desktop's first process ended by itself, with code {code}")


def _of_memory(details: Mapping[str, Any] | None) -> Cause:
    limit = (details or {}).get("HostConfig", {}).get("Memory", 0)
    if details is not None and not limit:
        return Cause(kind="host", detail="the host ran out of memory; the container has no limit of its own")
    own = f" of {limit // 2**20} MiB" if limit else ""
    return Cause(kind="guest", detail=f"the desktop ran out of memory within its own limit{own}")
