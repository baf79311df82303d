"""Times of rows: the database's, whatever a role inserts."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from rollbook.ledger import tables
from tests.support.ledger import Kit

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


def test_every_table_has_one() -> None:
    without = {table.name for table in tables.metadata.sorted_tables} - {table for table, _ in OF_THE_DATABASE}
    assert without == {"task_set_member"}
