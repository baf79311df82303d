"""Checks behind a score: `evaluation.detail` holds them where it was empty, so its comment says so."""

from alembic import op

revision = "0019_evaluation_checks"
down_revision = "0018_origin_before"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.execute("COMMENT ON COLUMN evaluation.detail IS 'error text; of a score, the checks behind it; for people'")


def downgrade() -> None:
    op.execute("COMMENT ON COLUMN evaluation.detail IS 'error text, for people'")
