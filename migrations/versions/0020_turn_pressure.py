"""Pressure and the guest's answer time of each step: a score under load can be traced to the step that suffered."""

from alembic import op

revision = "0020_turn_pressure"
down_revision = "0019_evaluation_checks"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    op.execute("ALTER TABLE turn ADD COLUMN pressure JSONB, ADD COLUMN answer_s DOUBLE PRECISION")
    op.execute("ALTER TABLE turn ADD CONSTRAINT turn_answer CHECK (answer_s >= 0 AND answer_s < 'Infinity') NOT VALID")
    op.execute(
        "COMMENT ON COLUMN turn.pressure IS 'pressure on the host after the observation; NULL where it cannot be read'"
    )
    op.execute("COMMENT ON COLUMN turn.answer_s IS 'seconds in which the desktop answered the observation'")


def downgrade() -> None:
    op.execute("ALTER TABLE turn DROP COLUMN pressure, DROP COLUMN answer_s")
