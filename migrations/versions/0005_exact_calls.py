"""Exact calls: image as sent, token arrays, parts of the reply: what it takes to render every prompt again."""

from alembic import op

from migrations.support import run_sql

revision = "0005_exact_calls"
down_revision = "0004_evidence"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("0005_exact_calls.sql")


def downgrade() -> None:
    for column in ("said", "tokens_sha256", "image_sha256"):
        op.execute(f"ALTER TABLE model_call DROP COLUMN {column}")
