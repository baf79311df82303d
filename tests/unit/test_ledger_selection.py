"""Which tasks a batch plans, and which relaunches are refused."""

from typing import Any

import pytest

from models.task import TaskFilter
from rollbook.errors import InvalidInput, SpecConflict
from rollbook.ledger.task_selection import Member, Planned, compare, select_tasks

MEMBERS = [
    Member("vlc", "v-1", "d1"),
    Member("own", "o-1", "d2"),
    Member("os", "os-2", "d3"),
    Member("os", "os-1", "d4"),
    Member("chrome", "c-1", "d5"),
]


def test_order_is_osworlds_then_by_name_and_does_not_depend_on_the_input() -> None:
    ids = [member.task_id for member in select_tasks(MEMBERS, TaskFilter())]
    assert ids == ["c-1", "os-1", "os-2", "v-1", "o-1"]
    assert [member.task_id for member in select_tasks(reversed(MEMBERS), TaskFilter())] == ids


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({"domains": ["os"]}, ["os-1", "os-2"]),
        ({"ids": ["v-1", "c-1"]}, ["c-1", "v-1"]),
        ({"domains": ["os"], "ids": ["os-2"]}, ["os-2"]),
        ({"exclude_ids": ["os-1", "v-1"]}, ["c-1", "os-2", "o-1"]),
    ],
)
def test_filter(wanted: dict[str, Any], ids: list[str]) -> None:
    assert [member.task_id for member in select_tasks(MEMBERS, TaskFilter(**wanted))] == ids


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"domains": ["crome"]}, "tasks.domains: the task set has no domain 'crome'; did you mean chrome?"),
        ({"ids": ["os-3"]}, "tasks.ids: the task set has no task 'os-3'; did you mean os-2?"),
        ({"ids": ["zzzz"]}, "tasks.ids: the task set has no task 'zzzz'; it has, for instance, "),
        ({"exclude_ids": ["os-9"]}, "tasks.exclude_ids"),
        ({"domains": ["os"], "ids": ["v-1"]}, "tasks: the filter selects no task"),
    ],
)
def test_what_is_unknown_is_named(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        select_tasks(MEMBERS, TaskFilter(**wanted))
    assert message in str(error.value)


A, B = Member("os", "a", "1"), Member("os", "b", "2")


def planned(*members: Member, samples: int = 1) -> list[Planned]:
    return [Planned(member.domain, member.task_id, member.task_digest, samples) for member in members]


@pytest.mark.parametrize(
    ("before", "now", "samples", "extend"),
    [
        ([], [A, B], 3, False),  # a first launch
        (planned(A, B), [B, A], 1, False),  # the same, in another order
        (planned(A), [A, B], 1, True),  # another task
        (planned(A), [A], 2, True),  # another sample
        (planned(A, B), [B], 1, True),  # rows that are planned stay
    ],
)
def test_allowed(before: list[Planned], now: list[Member], samples: int, extend: bool) -> None:
    compare(before, now, samples, extend=extend)


@pytest.mark.parametrize(
    ("before", "now", "samples", "extend", "message"),
    [
        (planned(A), [A, B], 1, False, "tasks: the batch did not plan 1 task (b); set extend"),
        (planned(A, B), [A], 1, False, "tasks: the batch already planned 1 task (b)"),
        (planned(A), [A], 2, False, "samples: 1 -> 2; set extend"),
        (planned(A, samples=2), [A], 1, False, "samples: 2 -> 1; samples may only grow"),
        (planned(A), [Member("os", "a", "9")], 1, False, "another version"),
        (planned(A), [Member("os", "a", "9")], 2, True, "another version"),
        (planned(A), [Member("vlc", "a", "1")], 1, True, "another version"),
    ],
)
def test_refused(before: list[Planned], now: list[Member], samples: int, extend: bool, message: str) -> None:
    with pytest.raises(SpecConflict) as error:
        compare(before, now, samples, extend=extend)
    assert message in str(error.value)
