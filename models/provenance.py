"""The identity that a trainer gives its rollouts: one batch per sampling event.

The identity is complete or refused: the sampling event and, for every chosen task, the trainer's group. Group and
rollout ids follow from them by the scoped recipe of `models.identity`; sample i of a task is member i of its group. A
relaunch of the batch is a retry of the same decision; a new decision has a new event.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.base import Input
from models.identity import scoped_group_id, scoped_rollout_id

SamplerId = Annotated[str, Field(pattern=r"^[^\p{C}\s](?:[^\p{C}]*[^\p{C}\s])?$", max_length=200)]
"""An id that the sampler made: any printable text without blanks around it."""


class TrajectoryIdentity(Input):
    """NeMo Gym's identity block of one rollout, scoped to a sampling event. Its ids must follow from its parts."""

    schema_version: Literal[1] = 1
    rollout_id: SamplerId
    group_id: SamplerId
    task_id: SamplerId
    rollout_index: int = Field(ge=0)
    attempt_index: int = Field(default=0, ge=0)
    """0: the ledger counts further attempts itself."""
    sampling_event_id: SamplerId
    source_group_id: SamplerId

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.attempt_index:
            raise ValueError(f"attempt_index: {self.attempt_index} must be 0; further attempts are counted here")
        group = scoped_group_id(self.sampling_event_id, self.source_group_id)
        rollout = scoped_rollout_id(
            self.sampling_event_id, self.source_group_id, self.task_id, self.rollout_index, self.attempt_index
        )
        for name, value, derived in (("group_id", self.group_id, group), ("rollout_id", self.rollout_id, rollout)):
            if value != derived:
                raise ValueError(f"{name}: {value!r} does not follow from the block's other fields, {derived!r} does")
        return self


class Provenance(Input):
    """The sampling event of a batch, and the trainer's group of each of its tasks."""

    sampling_event_id: SamplerId
    """One decision of the trainer to sample; a retry reuses it, a new decision never does."""
    source_group_id: SamplerId | None = None
    """The trainer's group, for a batch of one task."""
    source_group_ids: dict[str, SamplerId] | None = None
    """The trainer's groups by task id, for a batch of several tasks: each chosen task, each group once."""
    trajectory_identities: list[TrajectoryIdentity] | None = None
    """The whole blocks instead of the groups: one for each rollout of the batch."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        forms = (self.source_group_id, self.source_group_ids, self.trajectory_identities)
        if sum(form is not None for form in forms) != 1:
            raise ValueError(
                "give sampling_event_id with one of source_group_id (one task), source_group_ids (by task id) or "
                "trajectory_identities (a block per rollout); give all identity fields or none"
            )
        if self.source_group_ids is not None:
            _require_distinct("source_group_ids", self.source_group_ids)
        if self.trajectory_identities is not None:
            _require_distinct("trajectory_identities", self._groups_of_blocks(self.trajectory_identities))
        return self

    def _groups_of_blocks(self, blocks: list[TrajectoryIdentity]) -> dict[str, str]:
        """The group of each task that the blocks name."""
        groups: dict[str, str] = {}
        for number, block in enumerate(blocks):
            if block.sampling_event_id != self.sampling_event_id:
                raise ValueError(
                    f"trajectory_identities.{number}.sampling_event_id: {block.sampling_event_id!r} is not the batch's "
                    f"sampling_event_id {self.sampling_event_id!r}"
                )
            if groups.setdefault(block.task_id, block.source_group_id) != block.source_group_id:
                raise ValueError(
                    f"trajectory_identities.{number}.source_group_id: task {block.task_id} has the group "
                    f"{groups[block.task_id]!r} already; a task has one group in a batch"
                )
        return groups

    def groups(self, task_ids: Iterable[str], samples: int) -> dict[str, str]:
        """The group of each chosen task; raises ValueError that names the field and what is missing or too much."""
        chosen = list(task_ids)
        if self.trajectory_identities is not None:
            return self._groups_of_rollouts(self.trajectory_identities, chosen, samples)
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

    def _groups_of_rollouts(self, blocks: list[TrajectoryIdentity], chosen: list[str], samples: int) -> dict[str, str]:
        indexes: dict[str, list[int]] = defaultdict(list)
        for block in blocks:
            indexes[block.task_id].append(block.rollout_index)
        for task_id in [*chosen, *sorted(indexes.keys() - set(chosen))]:
            wanted = list(range(samples)) if task_id in chosen else []
            if sorted(indexes[task_id]) != wanted:
                raise ValueError(
                    f"identity.trajectory_identities: task {task_id} has blocks with rollout_index "
                    f"{sorted(indexes[task_id])}; the batch plans {wanted}"
                )
        groups = self._groups_of_blocks(blocks)
        return {task_id: groups[task_id] for task_id in chosen}


def _require_distinct(field: str, groups: dict[str, str]) -> None:
    if not groups:
        raise ValueError(f"{field} is empty; every chosen task needs a group")
    seen: dict[str, str] = {}
    for task_id, group in groups.items():
        if group in seen:
            raise ValueError(
                f"{field}: tasks {seen[group]} and {task_id} share the group {group!r}; a group holds the "
                "samples of one task"
            )
        seen[group] = task_id


def _some(ids: list[str]) -> str:
    rest = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"task{'s' * (len(ids) > 1)} {', '.join(ids[:3])}{rest}"
