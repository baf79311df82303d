"""Pressure of each step: the check of revision 0020 is validated while workers go on."""

from migrations.support import validate_check

revision = "0021_turn_pressure_checked"
down_revision = "0020_turn_pressure"
branch_labels = None
depends_on = None
phase = "post"
online = True


def upgrade() -> None:
    validate_check("turn", "turn_answer")


def downgrade() -> None:
    """A validated check stays validated: it holds for new rows all the same."""
