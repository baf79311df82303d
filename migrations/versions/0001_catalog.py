"""Catalog: tasks, task sets, policy scripts and artifacts, which everything else refers to by digest."""

from migrations.support import drop_tables, run_sql

revision = "0001_catalog"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("0001_catalog.sql")


def downgrade() -> None:
    drop_tables("policy_script_name", "policy_script", "task_set_member", "task_set", "task", "artifact")
