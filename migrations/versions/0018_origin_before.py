"""Origin of a score: the check of revision 0017 is validated while workers go on."""

from migrations.support import validate_check

revision = "0018_origin_before"
down_revision = "0017_origin"
branch_labels = None
depends_on = None
phase = "post"
online = True

CHECKS = {"evaluation": ("evaluation_origin",)}


def upgrade() -> None:
    for table, names in CHECKS.items():
        for name in names:
            validate_check(table, name)


def downgrade() -> None:
    """A validated check stays validated: it holds for new rows all the same."""
