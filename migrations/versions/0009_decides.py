"""Deciding calls: the rule "this call decides its step" becomes a generated column, the one definition of it.

Adding a stored column rewrites `model_call` once, while writers are locked out. Row digests are over named columns,
so those of existing rows stay as they are.
"""

from alembic import op

from migrations.support import run_sql

revision = "0009_decides"
down_revision = "0008_no_contradiction_before"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    run_sql("0009_decides.sql")


def downgrade() -> None:
    op.execute("DROP INDEX model_call_decides_idx")
    op.execute("ALTER TABLE model_call DROP COLUMN decides")
    op.execute("""
        CREATE UNIQUE INDEX model_call_decides_idx ON model_call (rollout_key, attempt_index, step)
            WHERE accepted OR policy_stop_reason IS NOT NULL
    """)
