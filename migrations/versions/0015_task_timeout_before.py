"""The check of revision 0014 is validated while workers go on; older rows fit it, as it allows more than before."""

from migrations.support import validate_check

revision = "0015_task_timeout_before"
down_revision = "0014_task_timeout"
branch_labels = None
depends_on = None
phase = "post"
online = True


def upgrade() -> None:
    validate_check("outcome", "outcome_another_attempt")


def downgrade() -> None:
    """A validated check stays validated: it holds for new rows all the same."""
