"""The identity that a trainer gives its rollouts: one batch per sampling event.

The identity is complete or refused: the sampling event and, for every chosen task, the trainer's group. Group and
rollout ids follow from them by the scoped recipe of `models.identity`; sample i of a task is member i of its group. A
relaunch of the batch is a retry of the same decision; a new decision has a new event.
"""

from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import Field, model_validator

from models.base import Input

SamplerId = Annotated[str, Field(pattern=r"^[^\p{C}\s](?:[^\p{C}]*[^\p{C}\s])?$", max_length=200)]
"""An id that the sampler made: any printable text without blanks around it."""


class Provenance(Input):
    """The sampling event of a batch, and the trainer's group of each of its tasks."""

    sampling_event_id: SamplerId
    """One decision of the trainer to sample; a retry reuses it, a new decision never does."""
    source_group_id: SamplerId | None = None
    """The trainer's group, for a batch of one task."""
    source_group_ids: dict[str, SamplerId] | None = None
    """The trainer's groups by task id, for a batch of several tasks: each chosen task, each group once."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.source_group_id is None) == (self.source_group_ids is None):
            raise ValueError(
                "give sampling_event_id with either source_group_id (one task) or source_group_ids (by task id); "
                "give all identity fields or none"
            )
        if self.source_group_ids is not None:
            _require_distinct(self.source_group_ids)
        return self

    def groups(self, task_ids: Iterable[str]) -> dict[str, str]:
        """The group of each chosen task; raises ValueError that names the field and what is missing or too much."""
        chosen = list(task_ids)
        if self.source_group_ids is None:
            assert self.source_group_id is not None
            if len(chosen) != 1:
                raise ValueError(
                    f"identity.source_group_id: a group holds the samples of one task, the batch has {len(chosen)}; "
                    "give identity.source_group_ids, a group per task id"
                )
            return {chosen[0]: self.source_group_id}
        missing = sorted(set(chosen) - self.source_group_ids.keys())
        unknown = sorted(self.source_group_ids.keys() - set(chosen))
        if missing:
            raise ValueError(f"identity.source_group_ids: no group for {_some(missing)}; every chosen task needs one")
        if unknown:
            raise ValueError(f"identity.source_group_ids: the batch does not choose {_some(unknown)}")
        return {task_id: self.source_group_ids[task_id] for task_id in chosen}


def _require_distinct(groups: dict[str, str]) -> None:
    if not groups:
        raise ValueError("source_group_ids is empty; every chosen task needs a group")
    seen: dict[str, str] = {}
    for task_id, group in groups.items():
        if group in seen:
            raise ValueError(
                f"source_group_ids: tasks {seen[group]} and {task_id} share the group {group!r}; a group holds the "
                "samples of one task"
            )
        seen[group] = task_id


def _some(ids: list[str]) -> str:
    rest = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"task{'s' * (len(ids) > 1)} {', '.join(ids[:3])}{rest}"
