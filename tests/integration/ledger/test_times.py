"""Times of rows: the database's, whatever a role inserts."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from rollbook.ledger import tables
from tests.support.ledger import Kit, ref, rows

OF_THE_DATABASE = [
    (table.name, column.name)
    for table in tables.metadata.sorted_tables
    for column in table.columns
    if column.server_default is not None and "now()" in str(getattr(column.server_default, "arg", ""))
]


@pytest.mark.parametrize("role", ["rollbook_worker", "rollbook_operator"])
@pytest.mark.parametrize(("table", "column"), OF_THE_DATABASE)
async def test_no_role_sets_the_time_of_a_row(kit: Kit, role: str, table: str, column: str) -> None:
    async with kit.ledger.engine.connect() as connection:
        await connection.execute(text(f"SET ROLE {role}"))
        statement = f"INSERT INTO {table} ({column}) VALUES (now() - interval '1 day')"
        with pytest.raises(ProgrammingError, match="permission denied"):
            await connection.execute(text(statement))


async def test_a_lease_is_not_backdated(kit: Kit) -> None:
    key = (await kit.keys())[0]
    await kit.claim(key)
    lease = {"sandbox_key": f"s-{kit.batch_id}", "deployment_id": "test", "provider": "null", "lease_s": 60.0}
    await kit.ledger.sandbox_intent(ref(key, 1), "run-1", **lease)  # type: ignore[arg-type]
    running = "state = 'running', sandbox_id = 's', nonce = 'n', started_at"
    for change in (running, "state = 'stopped', stop_reason = 'by hand', stopped_at"):
        async with kit.ledger.engine.begin() as connection:
            await connection.execute(text("SET LOCAL ROLE rollbook_worker"))
            statement = f"UPDATE sandbox SET {change} = now() - interval '1 day' WHERE rollout_key = :key"
            assert (await connection.execute(text(statement), {"key": key})).rowcount == 1
    query = (
        "SELECT created_at <= started_at AND started_at <= stopped_at AS ordered FROM sandbox WHERE rollout_key = :key"
    )
    assert await rows(kit.ledger, query, key=key) == [{"ordered": True}]


def test_every_table_has_one() -> None:
    without = {table.name for table in tables.metadata.sorted_tables} - {table for table, _ in OF_THE_DATABASE}
    assert without == {"task_set_member"}
