"""Task sets, scripts: content-addressed, the newest registration of a name wins, nothing is exchanged."""

import asyncio
import uuid

import pytest

from rollbook.errors import InvalidInput, LedgerConflict
from rollbook.ledger import Ledger
from tests.support.ledger import make_task, make_tasks, rows


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


async def test_registering_again_changes_nothing(ledger: Ledger) -> None:
    name, tasks = fresh("set"), [make_task(900), make_task(901)]
    first = await ledger.register_task_set(name, tasks)
    again = await ledger.register_task_set(name, list(reversed(tasks)))
    assert (first.tasks, first.added) == (2, 2)
    assert (again.set_digest, again.added) == (first.set_digest, 0)
    assert len(await rows(ledger, "SELECT * FROM task_set WHERE name = :name", name=name)) == 1


async def test_documents_come_back_as_they_were(ledger: Ledger) -> None:
    task = make_task(7, instruction="größer <&> \\u0000 1e5")
    found = await ledger.register_task_set(fresh("set"), [task])
    (stored,) = await ledger.tasks_of(found.set_digest)
    assert stored.model_copy(update={"unscorable": None}) == task


@pytest.mark.parametrize("character", ["\x00", "\ud800"])
async def test_what_postgres_cannot_hold_is_refused_with_the_task_named(ledger: Ledger, character: str) -> None:
    document = make_task(8).document | {"instruction": f"type {character}"}
    task = make_task(8).model_copy(update={"document": document})
    with pytest.raises(InvalidInput, match="task task-008: the document holds a NUL or an unpaired surrogate"):
        await ledger.register_task_set(fresh("set"), [task])
    with pytest.raises(InvalidInput, match="it holds a NUL or an unpaired surrogate"):
        await ledger.register_script(fresh("script"), {"tasks": {"x": character}})


async def test_the_newest_registration_of_a_name_wins_and_a_digest_pins(ledger: Ledger) -> None:
    name = fresh("set")
    old = await ledger.register_task_set(name, [make_task(1)])
    new = await ledger.register_task_set(name, [make_task(1), make_task(2)])
    assert (await ledger.find_task_set(name)).set_digest == new.set_digest
    assert (await ledger.find_task_set(f"{name}@{old.set_digest[:12]}")).set_digest == old.set_digest
    await ledger.register_task_set(name, [make_task(1)])
    assert (await ledger.find_task_set(name)).set_digest == old.set_digest


async def test_racing_registrations_of_one_name_agree(ledger: Ledger) -> None:
    name, tasks = fresh("set"), make_tasks(30)
    found = await asyncio.gather(*(ledger.register_task_set(name, tasks) for _ in range(8)))
    assert len({result.set_digest for result in found}) == 1
    assert len(await rows(ledger, "SELECT * FROM task_set WHERE name = :name", name=name)) == 1


@pytest.mark.parametrize("ref", ["nobody", "nobody@deadbeef"])
async def test_an_unknown_name_says_what_there_is(ledger: Ledger, ref: str) -> None:
    await ledger.register_task_set("known", [make_task(1)])
    with pytest.raises(InvalidInput, match=r"task_set: 'nobody.*known"):
        await ledger.find_task_set(ref)


async def test_a_name_prefix_is_not_a_pattern(ledger: Ledger) -> None:
    found = await ledger.register_task_set("per_cent", [make_task(1)])
    assert (await ledger.find_task_set(f"per_cent@{found.set_digest}")).set_digest == found.set_digest
    with pytest.raises(InvalidInput):
        await ledger.find_task_set("per_cent@%")


async def test_an_id_occurs_once_per_set(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="task-001 is in both os and vlc"):
        await ledger.register_task_set("twice", [make_task(1, "os"), make_task(1, "vlc")])
    with pytest.raises(InvalidInput, match="no task"):
        await ledger.register_task_set("nothing", [])


async def test_a_document_under_a_wrong_digest_is_refused_by_the_database(ledger: Ledger) -> None:
    forged = make_task(5).model_copy(update={"task_digest": "0" * 64})
    with pytest.raises(LedgerConflict, match="task_digest_of_document"):
        await ledger.register_task_set("forged", [forged])


async def test_scripts(ledger: Ledger) -> None:
    name = fresh("script")
    body = {"tasks": {"task-001": {"steps": [{"actions": ["x" * 3, "DONE"]}]}}, "note": "a<b"}
    first = await ledger.register_script(name, body)
    assert await ledger.register_script(name, body) == first
    second = await ledger.register_script(name, body | {"note": ""})
    assert await ledger.find_script(name) == second
    assert await ledger.find_script(f"{name}@{first[:10]}") == first
    assert await ledger.script_body(first) == body
    with pytest.raises(InvalidInput, match=r"policy\.script"):
        await ledger.find_script("nobody")
