"""No contradiction: an end fits who ended it, only a failure earns another attempt, one call decides a step."""

from alembic import op

from migrations.support import run_sql

revision = "0007_no_contradiction"
down_revision = "0006_caller_identity"
branch_labels = None
depends_on = None
phase = "pre"

CHECKS = {
    "outcome": ("outcome_closed_from_outside", "outcome_another_attempt", "outcome_policy_of_closer"),
    "model_call": (
        "model_call_actions_are_text",
        "model_call_terminal_is_accepted",
        "model_call_stop_vocabulary",
        "model_call_failure_vocabulary",
        "model_call_tokens",
    ),
}


def upgrade() -> None:
    run_sql("0007_no_contradiction.sql")


def downgrade() -> None:
    op.execute("DROP INDEX model_call_decides_idx, outcome_evaluated_then_closed_idx")
    for table, names in CHECKS.items():
        for name in names:
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
