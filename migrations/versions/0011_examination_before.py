"""Broken desktops: the checks of revision 0010 are validated while workers go on; older rows fit them all."""

from migrations.support import validate_check

revision = "0011_examination_before"
down_revision = "0010_examination"
branch_labels = None
depends_on = None
phase = "post"
online = True

CHECKS = {
    "evaluation": ("evaluation_reason",),
    "outcome": ("outcome_failure_vocabulary", "outcome_another_attempt", "outcome_broken_has_no_score"),
}


def upgrade() -> None:
    for table, names in CHECKS.items():
        for name in names:
            validate_check(table, name)


def downgrade() -> None:
    """A validated check stays validated: it holds for new rows all the same."""
