"""Completions of a batch: one digest over all of its rows, whose record is kept in the artifact store.

Row digests alone prove nothing against a superuser, who can write a fitting one to a changed row.
"""

from migrations.support import drop_tables, run_sql

revision = "0012_completion"
down_revision = "0011_examination_before"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    run_sql("0012_completion.sql")


def downgrade() -> None:
    drop_tables("completion")
