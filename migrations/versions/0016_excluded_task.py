"""Excluded tasks: what a batch leaves out because its image or the evaluator cannot do it, each with the reason.

Such a task would score 0 for every policy, and the 0 would look valid; left out in silence, it would be missed.
"""

from alembic import op

from migrations.support import drop_tables, run_sql

revision = "0016_excluded_task"
down_revision = "0015_task_timeout_before"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    run_sql("0016_excluded_task.sql")


def downgrade() -> None:
    drop_tables("excluded_task")
    op.execute("ALTER TABLE registration DROP COLUMN notice")
    op.execute("ALTER TABLE task DROP COLUMN unscorable")
