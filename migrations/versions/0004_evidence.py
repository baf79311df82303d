"""Evidence: turns and model calls, step by step; their bytes are artifacts."""

from migrations.support import drop_tables, run_sql

revision = "0004_evidence"
down_revision = "0003_attempts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("0004_evidence.sql")


def downgrade() -> None:
    drop_tables("model_call", "turn")
