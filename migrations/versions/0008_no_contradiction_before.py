"""No contradiction in the rows of before either: the checks of revision 0007 are validated while workers go on."""

from migrations.support import validate_check

revision = "0008_no_contradiction_before"
down_revision = "0007_no_contradiction"
branch_labels = None
depends_on = None
phase = "post"
online = True

CHECKS = {
    "outcome": ("outcome_closed_from_outside", "outcome_another_attempt", "outcome_policy_of_closer"),
    "model_call": (
        "model_call_actions_are_text",
        "model_call_terminal_is_accepted",
        "model_call_stop_vocabulary",
        "model_call_failure_vocabulary",
        "model_call_tokens",
    ),
}


def upgrade() -> None:
    for table, names in CHECKS.items():
        for name in names:
            validate_check(table, name)


def downgrade() -> None:
    """A validated check stays validated: it holds for new rows all the same."""
