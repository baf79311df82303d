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
