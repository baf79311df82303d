"""The far backstop of an attempt earns another one: only a standing infrastructure can make an attempt last so long."""

from alembic import op

from migrations.support import add_check

revision = "0014_task_timeout"
down_revision = "0013_temporal_server"
branch_labels = None
depends_on = None
phase = "pre"

BEFORE = (
    "'model_call_failed', 'sandbox_start_failed', 'sandbox_lost', 'setup_interrupted', 'evaluation_interrupted',"
    " 'reconciled', 'evaluator_error', 'setup_failed', 'superseded', 'desktop_broken'"
)
AFTER = (
    "'task_timeout', 'model_call_failed', 'sandbox_start_failed', 'sandbox_lost', 'setup_interrupted',"
    " 'evaluation_interrupted', 'reconciled', 'evaluator_error', 'setup_failed', 'superseded', 'desktop_broken'"
)


def upgrade() -> None:
    _allow(AFTER)


def downgrade() -> None:
    _allow(BEFORE)


def _allow(reasons: str) -> None:
    op.execute("ALTER TABLE outcome DROP CONSTRAINT outcome_another_attempt")
    allowed = f"coalesce(infrastructure_failure_reason IN ({reasons}), false)"
    add_check("outcome", "outcome_another_attempt", f"next_state = 'final' OR {allowed}")
