"""Logical identity: canonical JSON, digests, and the ids derived from them.

Ids of groups and rollouts follow upstream's recipes, see docs/reference/upstream-contract.md: a trainer that computes
them itself must get the same.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

BATCH_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
"""At most 128 characters: domain, task and sample are added to it, and Temporal takes ids of up to 1,000."""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no white space and no NaN: equal values have equal text.

    Raises ValueError for NaN and infinities, TypeError for what JSON cannot hold.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 (64 hexadecimal digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def short_id(prefix: str, *parts: Any) -> str:
    """`<prefix>-` and 24 hexadecimal digits: upstream's recipe."""
    return f"{prefix}-{digest(list(parts))[:24]}"


def rollout_key(batch_id: str, domain: str, task_id: str, sample: int) -> str:
    """The logical rollout (batch, task, sample); also the id of its Episode workflow. Free of attempts."""
    return f"{batch_id}/{domain}/{task_id}/{sample}"


def batch_of(rollout: str) -> str:
    """The batch of a rollout's key: a batch id has no slash."""
    return rollout.partition("/")[0]


def sandbox_key(deployment_id: str, rollout: str, attempt_index: int, execution_id: str) -> str:
    """The label by which the desktop of one attempt is found again: 32 hexadecimal digits.

    The execution id is fresh for each claim of a ledger: two ledgers may know the same deployment, batch and attempt,
    and must not adopt each other's desktops.
    """
    return digest([deployment_id, rollout, attempt_index, execution_id])[:32]


def step_name(attempt_index: int, step: int, verb: str) -> str:
    """Activity id of one step, for instance `a1-s017-act`."""
    return f"a{attempt_index}-s{step:03d}-{verb}"


def phase_name(attempt_index: int, verb: str) -> str:
    """Activity id of one phase of an attempt, for instance `a1-evaluate`."""
    return f"a{attempt_index}-{verb}"


def op_id(rollout: str, attempt_index: int, step: int, position: int) -> str:
    """The id under which one action is journaled in the guest; the same for every delivery of it."""
    return f"{digest(rollout)[:12]}-a{attempt_index}-s{step:03d}-{position}"


def derived_group_id(task_id: str) -> str:
    """Group of a rollout whose identity is derived."""
    return short_id("trajectory-group", task_id)


def derived_rollout_id(task_id: str, group: str, sample: int, attempt_index: int, model_name: str) -> str:
    """`trajectory_rollout_id` of an attempt whose identity is derived."""
    return short_id("rollout", task_id, group, sample, attempt_index, model_name)


def scoped_group_id(sampling_event_id: str, source_group_id: str) -> str:
    """Group of a trainer's sampling event."""
    return short_id("group", {"sampling_event_id": sampling_event_id, "source_group_id": source_group_id})


def scoped_rollout_id(
    sampling_event_id: str, source_group_id: str, task_id: str, rollout_index: int, attempt_index: int
) -> str:
    """`trajectory_rollout_id` of an attempt within a trainer's sampling event."""
    return short_id(
        "rollout",
        {
            "sampling_event_id": sampling_event_id,
            "source_group_id": source_group_id,
            "task_id": task_id,
            "rollout_index": rollout_index,
            "attempt_index": attempt_index,
        },
    )


def trajectory_rollout_id(row: Mapping[Any, Any], policy_name: str, attempt_index: int) -> str:
    """`trajectory_rollout_id` of one attempt of a planned row; attempts are counted from 0 in it, from 1 elsewhere."""
    earlier = attempt_index - 1
    if row["sampling_event_id"] is not None:
        return scoped_rollout_id(
            row["sampling_event_id"], row["source_group_id"], row["task_id"], row["rollout_index"], earlier
        )
    return derived_rollout_id(row["task_id"], row["group_id"], row["rollout_index"], earlier, policy_name)
