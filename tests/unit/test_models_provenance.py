"""Caller identity: complete or refused, and the ids that follow from it."""

import hashlib
from typing import Any

import pytest
from pydantic import ValidationError

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
            "one of source_group_id",
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
    assert one.groups(["t"], 1) == {"t": "g"}
    with pytest.raises(ValueError, match=r"source_group_id: a group holds the samples of one task, the batch has 2"):
        one.groups(["t", "u"], 1)
    several = Provenance(sampling_event_id=EVENT, source_group_ids={"t": "g", "u": "h"})
    assert several.groups(["t", "u"], 1) == {"t": "g", "u": "h"}
    with pytest.raises(ValueError, match="no group for task v; every chosen task needs one"):
        several.groups(["t", "u", "v"], 1)
    with pytest.raises(ValueError, match="the batch does not choose task u"):
        several.groups(["t"], 1)


def test_two_events_have_one_contract() -> None:
    """The caller of a rollout is not part of its meaning: batches of several events can be compared."""
    first, second = (
        read_spec(spec({"sampling_event_id": event, "source_group_id": "g"})) for event in ("event-1", "event-2")
    )
    plain = read_spec({"task_set": "s", "policy": {"kind": "noop"}})
    digests = {contract_of(one, Resolved()).digest for one in (first, second, plain)}
    assert len(digests) == 1


def _block(task_id: str = "t", rollout_index: int = 0, group: str = "g", **changes: Any) -> dict[str, Any]:
    """The block that NeMo Gym's scoping gives one row."""
    return {
        "schema_version": 1,
        "rollout_id": scoped_rollout_id("e", group, task_id, rollout_index, 0),
        "group_id": scoped_group_id("e", group),
        "task_id": task_id,
        "rollout_index": rollout_index,
        "attempt_index": 0,
        "sampling_event_id": "e",
        "source_group_id": group,
        **changes,
    }


def _read(*blocks: dict[str, Any], **more: Any) -> Provenance:
    return Provenance.model_validate({"sampling_event_id": "e", "trajectory_identities": list(blocks), **more})


def test_the_whole_blocks_of_all_rollouts_give_the_groups() -> None:
    blocks = [_block(task, index, group) for task, group in (("t", "g"), ("u", "h")) for index in (1, 0)]
    assert _read(*blocks).groups(["t", "u"], 2) == {"t": "g", "u": "h"}
    for chosen, samples, message in (
        (["t", "u"], 3, r"task t has blocks with rollout_index \[0, 1\]; the batch plans \[0, 1, 2\]"),
        (["t"], 2, r"task u has blocks with rollout_index \[0, 1\]; the batch plans \[\]"),
        (["t", "u", "v"], 2, r"task v has blocks with rollout_index \[\]; the batch plans \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            _read(*blocks).groups(chosen, samples)
    with pytest.raises(ValueError, match="task t has blocks with rollout_index"):
        _read(_block(), _block()).groups(["t"], 1)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "trajectory_identities is empty"),
        ([_block(rollout_id="rollout-1")], "rollout_id: 'rollout-1' does not follow"),
        ([_block(group_id="group-1")], "group_id: 'group-1' does not follow"),
        ([_block(attempt_index=1)], "attempt_index: 1 must be 0"),
        ([_block(schema_version=2)], "schema_version"),
        ([_block(rollout_index=True)], "rollout_index"),
        ([_block(rollout_index=-1)], "rollout_index"),
        ([{key: value for key, value in _block().items() if key != "source_group_id"}], "source_group_id"),
        ([_block(context_compaction_rollout_id="r")], "context_compaction_rollout_id"),
        ([_block(), _block(rollout_index=1, group="h")], "1.source_group_id: task t has the group 'g' already"),
        ([_block(), _block("u")], "tasks t and u share the group 'g'"),
    ],
)
def test_a_block_that_contradicts_itself_or_another_is_refused(blocks: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        _read(*blocks)


def test_blocks_belong_to_the_event_of_the_batch_and_replace_the_groups() -> None:
    with pytest.raises(ValidationError, match="'e' is not the batch's sampling_event_id 'other'"):
        _read(_block(), sampling_event_id="other")
    with pytest.raises(ValidationError, match="give sampling_event_id with one of"):
        _read(_block(), source_group_id="g")
