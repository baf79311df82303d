"""Helpers of the revisions."""

from pathlib import Path

from alembic import op

SQL = Path(__file__).parent / "sql"


def run_sql(name: str) -> None:
    """Run a frozen script of `migrations/sql`."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute((SQL / name).read_text())


def drop_tables(*names: str) -> None:
    """Drop tables, in this order. Only revisions that made them do that."""
    for name in names:
        op.execute(f"DROP TABLE {name}")


def add_check(table: str, name: str, expression: str) -> None:
    """Add a CHECK that holds for new rows from now on; a `post` revision validates it for those that are there.

    In a `pre` revision: adding it validated would read the table while writers are locked out.
    """
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({expression}) NOT VALID")


def validate_check(table: str, name: str) -> None:
    """Validate a CHECK of an earlier revision while workers read and write: for a `post` revision, `online = True`."""
    op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
