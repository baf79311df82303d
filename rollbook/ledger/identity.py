"""Identity of an attempt, from the planned row and the contract (upstream contract §2.1)."""

from typing import Any

from sqlalchemy import RowMapping

from models.identity import derived_rollout_id, scoped_rollout_id

POLICY_NAME_SQL = "coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind')"


def trajectory_rollout_id(row: RowMapping | dict[str, Any], policy_name: str, attempt_index: int) -> str:
    """Upstream's id of the rollout of one attempt; upstream counts attempts from 0."""
    earlier = attempt_index - 1
    if row["sampling_event_id"] is not None:
        return scoped_rollout_id(
            row["sampling_event_id"], row["source_group_id"], row["task_id"], row["rollout_index"], earlier
        )
    return derived_rollout_id(row["task_id"], row["group_id"], row["rollout_index"], earlier, policy_name)
