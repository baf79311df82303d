"""${message}: say here why, in one or two sentences."""

from migrations.support import run_sql

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None
phase = "pre"  # or "post": applied after the last old worker is gone; with online = True if it locks no table


def upgrade() -> None:
    run_sql("${up_revision}.sql")


def downgrade() -> None:
    raise NotImplementedError
