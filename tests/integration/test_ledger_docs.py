"""The reference page says what is there, and its queries run."""

import re

import pytest

from rollbook.ledger import Ledger, describe
from tests.integration.ledgerkit import Kit, make_tasks, rows

pytest_plugins = ("tests.integration.ledger_fixtures",)

PAGE = describe.PAGE.read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def test_tables_are_described_as_they_are() -> None:
    assert describe.rendered(PAGE) == PAGE, "run python -m rollbook.ledger.describe"


def test_there_are_twenty_queries() -> None:
    assert len(QUERIES) == 20


@pytest.mark.parametrize("number", range(len(QUERIES)), ids=lambda number: f"question {number + 1}")
async def test_queries_run(ledger: Ledger, number: int) -> None:
    """Each runs with a reader's rights, on a batch with a result and an open attempt."""
    kit = Kit(ledger, batch_id=f"docs-{number}", tasks=make_tasks(3))
    await ledger.register_task_set("docs", kit.tasks)
    keys = await kit.keys(task_set="docs")
    await kit.run(keys[0])
    await kit.claim(keys[1])
    query = QUERIES[number].replace("nightly-7", kit.batch_id)
    reader = Ledger.connect(ledger.engine.url.render_as_string(hide_password=False), role="rollbook_reader")
    await rows(reader, query.replace(":", "\\:").replace("\\:\\:", "::"))
    await reader.aclose()


async def test_every_column_of_every_view_is_named(ledger: Ledger) -> None:
    query = """
        SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = 'public' AND table_name IN (SELECT viewname FROM pg_views WHERE schemaname = 'public')
    """
    for row in await rows(ledger, query):
        (line,) = re.findall(rf"^\| `{row['table_name']}` \|.*$", PAGE, re.MULTILINE)
        assert f"`{row['column_name']}`" in line, row
