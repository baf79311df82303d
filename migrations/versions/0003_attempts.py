"""Attempts: tries, their ends, evaluations, decisions, reruns and the leases of desktops."""

from alembic import op

from migrations.support import drop_tables, run_sql

revision = "0003_attempts"
down_revision = "0002_plan"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("0003_attempts.sql")


def downgrade() -> None:
    op.execute("ALTER TABLE rollout DROP CONSTRAINT rollout_current_attempt_fkey")
    op.execute("ALTER TABLE rollout DROP CONSTRAINT rollout_selected_attempt_fkey")
    drop_tables("sighting", "sandbox", "rerun_request", "admission", "outcome", "evaluation", "attempt")
