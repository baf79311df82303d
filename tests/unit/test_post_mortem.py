"""The cause of a container's end from Docker's records; tests/conformance has the real engine end some."""

from typing import Any

import pytest

from rollbook.sandboxes.docker.post_mortem import EVENTS_KEPT, Event, cause_of_end

LIMITED = {"Memory": 3 * 2**30}


def state(status: str, **facts: Any) -> dict[str, Any]:
    return {"State": {"Status": status, "Error": "", "OOMKilled": False} | facts, "HostConfig": LIMITED}


def events(*actions: str) -> list[Event]:
    """Events in their order: `kill:9` with a signal, `die:1` with an exit code."""
    made = []
    for at, text in enumerate(actions):
        action, _, value = text.partition(":")
        made.append(Event(action, at, {"signal": value} if action == "kill" else {"exitCode": value}))
    return made


@pytest.mark.parametrize(
    ("details", "seen", "kind"),
    [
        (state("running"), ("create", "start"), None),
        (state("exited"), ("create", "start", "die:1"), "guest"),
        (state("exited"), ("create", "start", "die:0"), "guest"),
        (None, ("create", "start", "die:1", "destroy"), "guest"),  # removed when it was dead
        (state("running"), ("start", "die:1", "start"), "guest"),  # started again when it was dead
        (state("exited"), ("start", "kill:9", "die:137"), "host"),
        (state("exited"), ("start", "kill:15", "kill:9", "die:137", "stop"), "host"),
        (state("running"), ("start", "kill:15", "die:0", "stop", "start", "restart"), "host"),
        (None, ("start", "kill:9", "die:137", "destroy"), "host"),
        (state("exited"), ("start", "kill:10", "die:1"), "guest"),  # a signal that ends nothing
        (state("exited"), ("start", "die:137"), "host"),
        (state("exited", OOMKilled=True), ("start", "oom", "die:137"), "guest"),
        (state("running"), ("start", "oom"), "guest"),
        (state("paused"), ("start", "pause"), "host"),
        (state("exited", Error="no space left on device"), ("create",), "host"),
        (None, ("destroy",), "host"),
        (None, (), "unknown"),
    ],
)
def test_who_ended_a_container(details: dict[str, Any] | None, seen: tuple[str, ...], kind: str | None) -> None:
    cause = cause_of_end(details, events(*seen), all_events=len(seen))
    assert (cause and cause.kind) == kind


def test_an_end_that_no_event_tells_of() -> None:
    """The engine keeps its events in memory: those from before its start are gone, and so are the oldest of many."""
    restarted = cause_of_end(state("exited"), [], all_events=7)
    forgotten = cause_of_end(state("exited"), [], all_events=EVENTS_KEPT)
    assert restarted is not None
    assert forgotten is not None
    assert (restarted.kind, forgotten.kind) == ("host", "unknown")


def test_memory_without_a_limit_of_its_own_is_the_hosts() -> None:
    details = state("exited", OOMKilled=True) | {"HostConfig": {"Memory": 0}}
    cause = cause_of_end(details, events("start", "oom", "die:137"), all_events=3)
    assert cause is not None
    assert cause.kind == "host"
