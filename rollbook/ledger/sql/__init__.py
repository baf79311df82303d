"""SQL of the ledger. `<module>.sql` holds the named statements of `rollbook.ledger.<module>`.

`row_digests.sql`, `guards.sql`, `views.sql` and `grants.sql` are loaded into the database by a migration
(`rollbook.ledger.schema`).
"""

import re
from functools import cache
from pathlib import Path

from sqlalchemy import TextClause, text

SQL = Path(__file__).parent


@cache
def statements(name: str) -> dict[str, TextClause]:
    """The statements of `<name>.sql` by their names, in the order of the file.

    A statement follows a line `-- name: …`. `:name` is a parameter everywhere, also in a comment.
    """
    parts = re.split(r"^-- name: (.+)$", (SQL / f"{name}.sql").read_text(), flags=re.MULTILINE)[1:]
    return {key.strip(): text(body.strip().rstrip(";")) for key, body in zip(parts[::2], parts[1::2], strict=True)}
