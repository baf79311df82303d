"""Which tasks a batch plans, and how that compares with what it planned before. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from models.explain import did_you_mean
from models.task import TaskFilter, domain_rank
from rollbook.errors import InvalidInput, SpecConflict

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Member:
    """A task of a set, without its document."""

    domain: str
    task_id: str
    task_digest: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A task of a batch as it was planned before."""

    domain: str
    task_id: str
    task_digest: str
    samples: int


def select_tasks(members: Iterable[Member], wanted: TaskFilter) -> list[Member]:
    """The members that the filter selects, in OSWorld's order; raises InvalidInput that names the field."""
    everything = list(members)
    domains = {member.domain for member in everything}
    ids = {member.task_id for member in everything}
    _require_known("tasks.domains", wanted.domains or (), domains, "domain")
    _require_known("tasks.ids", wanted.ids or (), ids, "task")
    _require_known("tasks.exclude_ids", wanted.exclude_ids, ids, "task")
    chosen = [
        member
        for member in everything
        if (wanted.domains is None or member.domain in wanted.domains)
        and (wanted.ids is None or member.task_id in wanted.ids)
        and member.task_id not in wanted.exclude_ids
    ]
    if not chosen:
        raise InvalidInput("tasks: the filter selects no task of the set; loosen domains, ids or exclude_ids")
    return sorted(chosen, key=lambda member: (domain_rank(member.domain), member.task_id))


def leave_out(
    chosen: Iterable[Member], unrunnable: Mapping[str, str], on_unrunnable: str
) -> tuple[list[Member], list[Member]]:
    """Divide the chosen tasks into those to plan and those to leave out; `unrunnable` maps task ids to reasons.

    Raises InvalidInput that names tasks and reasons, unless the spec wants them left out.
    """
    planned = [member for member in chosen if member.task_id not in unrunnable]
    excluded = [member for member in chosen if member.task_id in unrunnable]
    if not excluded or (on_unrunnable == "exclude" and planned):
        return planned, excluded
    shown = [f"{member.domain}/{member.task_id}: {unrunnable[member.task_id][:300]}" for member in excluded[:_SHOWN]]
    more = f"; and {len(excluded) - _SHOWN} more" if len(excluded) > _SHOWN else ""
    fix = 'set tasks.on_unrunnable to "exclude" to leave them out, or choose another image or other tasks'
    if not planned:
        fix = "choose another image or other tasks"
    raise InvalidInput(
        f"tasks: {len(excluded)} of the {len(planned) + len(excluded)} chosen tasks cannot be run or scored here: "
        f"{'; '.join(shown)}{more}. Fix: {fix}"
    )


def _require_known(where: str, given: Iterable[str], known: set[str], what: str) -> None:
    for value in given:
        if value not in known:
            hint = did_you_mean(value, known) or f"it has, for instance, {', '.join(sorted(known)[:3])}"
            raise InvalidInput(f"{where}: the task set has no {what} {value!r}; {hint}")


def compare(planned: Iterable[Planned], chosen: Iterable[Member], samples: int, *, extend: bool) -> None:
    """Refuse a relaunch that would change what was planned.

    A planned task never changes its version. Without `extend` the selection must be the planned one; with it, tasks
    and samples may come in addition, and rows that are planned already stay.
    """
    before = {row.task_id: row for row in planned}
    now = {member.task_id: member for member in chosen}
    for task_id in before.keys() & now.keys():
        old, new = before[task_id], now[task_id]
        if (old.domain, old.task_digest) != (new.domain, new.task_digest):
            raise SpecConflict(
                f"task_set: task {new.domain}/{task_id} is another version than the batch planned "
                f"({old.task_digest[:12]} -> {new.task_digest[:12]}); pin the set as name@digest, "
                "or submit under a new batch id"
            )
    if extend or not before:
        return
    added, missing = now.keys() - before.keys(), before.keys() - now.keys()
    if added:
        raise SpecConflict(
            f"tasks: the batch did not plan {_some(added)}; set extend to true to add tasks, "
            "or submit under a new batch id"
        )
    if missing:
        raise SpecConflict(
            f"tasks: the batch already planned {_some(missing)}, which this spec leaves out; planned rollouts stay: "
            "select the same tasks, or submit under a new batch id"
        )
    counts = sorted({row.samples for row in before.values()})
    if counts != [samples]:
        fix = "set extend to true to add samples" if samples > counts[0] else "samples may only grow"
        raise SpecConflict(f"samples: {' and '.join(map(str, counts))} -> {samples}; {fix}")


def _some(ids: Iterable[str]) -> str:
    ordered = sorted(ids)
    rest = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return f"{len(ordered)} task{'s' * (len(ordered) > 1)} ({', '.join(ordered[:3])}{rest})"
