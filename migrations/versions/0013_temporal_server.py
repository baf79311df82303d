"""The Temporal server that a deployment's workflows live on.

A worker that speaks with another one finds none of them, and would close every live attempt as gone.
"""

from migrations.support import drop_tables, run_sql

revision = "0013_temporal_server"
down_revision = "0012_completion"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    run_sql("0013_temporal_server.sql")


def downgrade() -> None:
    drop_tables("temporal_server")
