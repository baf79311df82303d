"""Origin of a score: images by digest with their manifest, the image of each desktop, and complete evaluations."""

from alembic import op

from migrations.support import add_check, drop_tables, run_sql

revision = "0017_origin"
down_revision = "0016_excluded_task"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    run_sql("0017_origin.sql")
    add_check("evaluation", "evaluation_origin", "NOT completed OR evaluator_revision IS NOT NULL")


def downgrade() -> None:
    op.execute("ALTER TABLE evaluation DROP CONSTRAINT evaluation_origin")
    op.execute("ALTER TABLE sandbox DROP COLUMN image_digest")
    drop_tables("phase", "image")
