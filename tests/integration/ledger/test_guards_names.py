"""Names that mean something else: temporary tables and a search_path of one's own do not deceive the guards."""

from collections.abc import AsyncIterator

import pytest

from rollbook.ledger import Ledger
from tests.support.hostile import admission, attack, ending
from tests.support.ledger import Kit, make_tasks, rows


@pytest.fixture
async def fresh(ledger_url: str) -> AsyncIterator[Ledger]:
    """The owner of the tables on a connection of its own: it has no plan of a guard's query yet."""
    ledger = Ledger.connect(ledger_url, pool_size=1)
    yield ledger
    await ledger.aclose()


@pytest.fixture(scope="module")
async def victim(ledger: Ledger) -> Kit:
    """One admitted rollout with score 0, one open one that was not evaluated."""
    kit = Kit(ledger, batch_id="shadowed", tasks=make_tasks(6))
    await ledger.register_task_set("tasks", kit.tasks)
    keys = await kit.keys()
    await kit.run(keys[0], score=0.0)
    await kit.claim(keys[1])
    for step in range(4):
        await kit.step(keys[1], 1, "run-1", step, "DONE" if step == 3 else None)
    return kit


def shadows(ended: str, opened: str) -> dict[str, tuple[str, list[str], str]]:
    """By the table that is shadowed: what the shadow says, what is tried behind it, and the refusal."""
    call = (
        "INSERT INTO public.model_call (rollout_key, attempt_index, step, parse_attempt, policy_kind, actions,"
        f" completed, accepted, row_digest) SELECT '{ended}', 1, 9, 1, 'x', '[]', true, true, ''"
    )
    again = f"UPDATE public.rollout SET state = 'waiting' WHERE rollout_key = '{ended}'"
    return {
        "rerun_request": (
            f"SELECT '{ended}'::text AS rollout_key, 1 AS after_attempt",
            [again],
            "only after a rerun request",
        ),
        "evaluation": (
            f"SELECT '{opened}'::text AS rollout_key, 1 AS attempt_index, true AS completed, 1.0::float8 AS score",
            ending(opened, score="1", reward="1"),
            "the score is the evaluator's or none",
        ),
        "outcome": ("SELECT ''::text AS rollout_key, 0 AS attempt_index", [call], "has ended, no model_call is added"),
        "rollout": (
            f"SELECT '{ended}'::text AS rollout_key, 'caller'::text AS identity_source, 0 AS decisions",
            [admission(f"'{ended}'", 1, "training", 1, "true")],
            "never trainable",
        ),
    }


@pytest.mark.parametrize("table", ["rerun_request", "evaluation", "outcome", "rollout"])
async def test_a_temporary_table_answers_for_nobody(victim: Kit, fresh: Ledger, table: str) -> None:
    ended, opened, *_ = await victim.planned()
    said, attempts, refusal = shadows(ended, opened)[table]
    assert refusal in await attack(fresh, f"CREATE TEMP TABLE {table} AS {said}", *attempts)
    await victim.clean()


async def test_nor_does_a_schema_of_ones_own(victim: Kit, fresh: Ledger) -> None:
    ended, *_ = await victim.planned()
    said = f"CREATE TABLE mine.rerun_request AS SELECT '{ended}'::text AS rollout_key, 1 AS after_attempt"
    again = f"UPDATE public.rollout SET state = 'waiting' WHERE rollout_key = '{ended}'"
    statements = ("CREATE SCHEMA mine", said, "SET LOCAL search_path = mine, public", again)
    assert "only after a rerun request" in await attack(fresh, *statements)


async def test_the_worker_makes_no_tables_at_all(worker: Ledger) -> None:
    assert "permission denied to create temporary tables" in await attack(worker, "CREATE TEMP TABLE outcome (a int)")
    for statement in ("CREATE TABLE mine (a int)", "CREATE SCHEMA mine"):
        assert "permission denied" in await attack(worker, statement)


async def test_every_trigger_function_has_its_names_fixed(ledger: Ledger) -> None:
    query = """
        SELECT DISTINCT proname, proconfig FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid WHERE NOT tgisinternal
    """
    found = {row["proname"]: row["proconfig"] for row in await rows(ledger, query)}
    assert len(found) > 10
    assert {name for name, config in found.items() if config != ["search_path=public, pg_temp"]} == set()
