"""Caller identity: a trainer's rollout names its sampling event and group, neither of them blank."""

from alembic import op

from migrations.support import run_sql

revision = "0006_caller_identity"
down_revision = "0005_exact_calls"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("0006_caller_identity.sql")


def downgrade() -> None:
    op.execute("""
        ALTER TABLE rollout DROP CONSTRAINT rollout_caller_ids, DROP CONSTRAINT rollout_identity_complete,
            ADD CONSTRAINT rollout_identity_complete CHECK ((sampling_event_id IS NULL) = (source_group_id IS NULL)
                AND (sampling_event_id IS NULL OR identity_source = 'caller'))
    """)
