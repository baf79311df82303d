"""Caller identity: complete or refused, and the ids that follow from it."""

import hashlib
from typing import Any

import pytest

from models.contract import Resolved
from models.identity import scoped_group_id, scoped_rollout_id
from models.provenance import Provenance
from models.spec import contract_of, read_spec

EVENT = "sampling-train-step-00000012-0f3a"


def spec(identity: Any) -> dict[str, Any]:
    return {"task_set": "s", "policy": {"kind": "noop"}, "identity": identity}


def test_the_scoped_ids_by_hand() -> None:
    """Worked from the recipe with nothing but SHA-256: sorted keys, no white space, first 24 digits."""
    group = f'[{{"sampling_event_id":"{EVENT}","source_group_id":"g-7"}}]'
    assert scoped_group_id(EVENT, "g-7") == "group-" + hashlib.sha256(group.encode()).hexdigest()[:24]
    rollout = (
        f'[{{"attempt_index":0,"rollout_index":3,"sampling_event_id":"{EVENT}","source_group_id":"g-7","task_id":"t"}}]'
    )
    expected = "rollout-" + hashlib.sha256(rollout.encode()).hexdigest()[:24]
    assert scoped_rollout_id(EVENT, "g-7", "t", 3, 0) == expected


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({}, "identity.sampling_event_id: required"),
        ({"sampling_event_id": EVENT}, "give all identity fields or none"),
        ({"source_group_id": "g"}, "identity.sampling_event_id: required"),
        (
            {"sampling_event_id": EVENT, "source_group_id": "g", "source_group_ids": {"t": "g"}},
            "either source_group_id",
        ),
        ({"sampling_event_id": EVENT, "source_group_ids": {}}, "source_group_ids is empty"),
        ({"sampling_event_id": EVENT, "source_group_ids": {"a": "g", "b": "g"}}, "tasks a and b share the group 'g'"),
        ({"sampling_event_id": "  ", "source_group_id": "g"}, "identity.sampling_event_id"),
        ({"sampling_event_id": "a\nb", "source_group_id": "g"}, "identity.sampling_event_id"),
        ({"sampling_event_id": EVENT, "source_group_id": 7}, "identity.source_group_id"),
        ({"sampling_event_id": EVENT, "source_group_id": True}, "identity.source_group_id"),
        ({"sampling_event_id": EVENT, "source_group_id": "g", "rollout_id": "r"}, "identity.rollout_id: unknown key"),
        (
            {"sampling_event_id": EVENT, "source_group_id": "g", "context_compaction_rollout_id": "r"},
            "identity.context_compaction_rollout_id: unknown key",
        ),
    ],
)
def test_a_partial_identity_is_refused_with_its_field(identity: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_spec(spec(identity))


def test_groups_of_the_chosen_tasks() -> None:
    one = Provenance(sampling_event_id=EVENT, source_group_id="g")
    assert one.groups(["t"]) == {"t": "g"}
    with pytest.raises(ValueError, match=r"source_group_id: a group holds the samples of one task, the batch has 2"):
        one.groups(["t", "u"])
    several = Provenance(sampling_event_id=EVENT, source_group_ids={"t": "g", "u": "h"})
    assert several.groups(["t", "u"]) == {"t": "g", "u": "h"}
    with pytest.raises(ValueError, match="no group for task v; every chosen task needs one"):
        several.groups(["t", "u", "v"])
    with pytest.raises(ValueError, match="the batch does not choose task u"):
        several.groups(["t"])


def test_two_events_have_one_contract() -> None:
    """The caller of a rollout is not part of its meaning: batches of several events can be compared."""
    first, second = (
        read_spec(spec({"sampling_event_id": event, "source_group_id": "g"})) for event in ("event-1", "event-2")
    )
    plain = read_spec({"task_set": "s", "policy": {"kind": "noop"}})
    digests = {contract_of(one, Resolved()).digest for one in (first, second, plain)}
    assert len(digests) == 1
