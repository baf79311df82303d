"""Alembic environment. The connection, inside a transaction, comes from rollbook.ledger.migrate."""

from alembic import context

from rollbook.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_type=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
