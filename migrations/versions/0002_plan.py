"""Plan: batches, their launches, and every rollout as a row before it runs."""

from migrations.support import drop_tables, run_sql

revision = "0002_plan"
down_revision = "0001_catalog"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("0002_plan.sql")


def downgrade() -> None:
    drop_tables("rollout", "registration", "batch")
