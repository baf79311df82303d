"""Broken desktops: what a provider saw of an attempt's desktop, and an ending of its own for a guest's own doing.

Without it a policy that wrecks its desktop gets a mask and more attempts, where a wrong answer gets a 0.
"""

from alembic import op

from migrations.support import add_check, drop_tables, run_sql

revision = "0010_examination"
down_revision = "0009_decides"
branch_labels = None
depends_on = None
phase = "pre"

BEFORE = (
    "'timeout', 'task_timeout', 'model_timeout', 'action_timeout', 'evaluator_error', 'proxy_configuration_error',"
    " 'proxy_required_but_disabled', 'proxy_setup_error', 'model_call_failed', 'rollout_error', 'sandbox_start_failed',"
    " 'sandbox_lost', 'setup_failed', 'setup_interrupted', 'evaluation_interrupted', 'cancelled', 'superseded',"
    " 'reconciled'"
)
AGAIN = (
    "'model_call_failed', 'sandbox_start_failed', 'sandbox_lost', 'setup_interrupted', 'evaluation_interrupted',"
    " 'reconciled', 'evaluator_error', 'setup_failed', 'superseded'"
)


def upgrade() -> None:
    run_sql("0010_examination.sql")


def downgrade() -> None:
    op.execute("ALTER TABLE outcome DROP CONSTRAINT outcome_broken_has_no_score")
    for table, name, expression in (
        ("evaluation", "evaluation_reason", f"reason IN ({BEFORE})"),
        ("outcome", "outcome_failure_vocabulary", f"infrastructure_failure_reason IN ({BEFORE})"),
        (
            "outcome",
            "outcome_another_attempt",
            f"next_state = 'final' OR coalesce(infrastructure_failure_reason IN ({AGAIN}), false)",
        ),
    ):
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        add_check(table, name, expression)
    drop_tables("examination")
