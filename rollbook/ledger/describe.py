"""Describes the tables from their metadata: the generated part of `docs/reference/ledger.md`.

`python -m rollbook.ledger.describe` writes it anew; a test compares.
"""

import re
from pathlib import Path

from sqlalchemy import CheckConstraint, Column, ForeignKeyConstraint, Table, make_url

from rollbook.ledger import tables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ledger.md"
BEGIN, END = "<!-- tables: generated -->", "<!-- end of generated part -->"

_POSTGRES = make_url("postgresql+psycopg://").get_dialect()()
_SHORT = {"TIMESTAMP WITH TIME ZONE": "timestamptz", "DOUBLE PRECISION": "double"}
_GROUPS = {
    "Catalog": ("artifact", "image", "task", "task_set", "task_set_member", "policy_script", "policy_script_name"),
    "Plan": ("batch", "registration", "excluded_task", "completion", "rollout", "rerun_request"),
    "Attempts": (
        "attempt",
        "phase",
        "evaluation",
        "examination",
        "outcome",
        "admission",
        "sandbox",
        "sighting",
        "temporal_server",
    ),
    "Evidence": ("turn", "model_call"),
}


def describe() -> str:
    """Markdown: the ER diagram, then every table with its columns and invariants."""
    parts = ["### How the tables hang together", "", er_diagram()]
    for group, names in _GROUPS.items():
        for name in names:
            parts += ["", *_table(tables.metadata.tables[name], group)]
    return "\n".join(parts)


def er_diagram() -> str:
    """A Mermaid entity-relationship diagram of the foreign keys."""
    lines = ["```mermaid", "erDiagram"]
    for name in (name for names in _GROUPS.values() for name in names):
        table = tables.metadata.tables[name]
        links = sorted({(key.referred_table.name, ", ".join(key.column_keys)) for key in _foreign_keys(table)})
        lines += [f'    {target} ||--o{{ {name} : "{columns}"' for target, columns in links]
    return "\n".join([*lines, "```"])


def _foreign_keys(table: Table) -> list[ForeignKeyConstraint]:
    return [key for key in table.constraints if isinstance(key, ForeignKeyConstraint)]


def _table(table: Table, group: str) -> list[str]:
    kind = "insert-only" if table in tables.INSERT_ONLY else "mutable"
    lines = [f"### `{table.name}`", "", f"{group}; {kind}: {table.comment}.", ""]
    lines += ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| {_name(column)} | {_type(column)} | {column.comment} |" for column in table.c]
    if invariants := sorted(_invariants(table)):
        lines += ["", "Named invariants: " + ", ".join(invariants) + "."]
    return lines


def _name(column: Column[object]) -> str:
    return f"**`{column.name}`**" if column.primary_key else f"`{column.name}`"


def _type(column: Column[object]) -> str:
    name = str(column.type.compile(dialect=_POSTGRES))
    return _SHORT.get(name, name.lower()) + ("" if not column.nullable or column.computed is not None else ", or NULL")


def _invariants(table: Table) -> list[str]:
    return [f"`{check.name}`" for check in table.constraints if isinstance(check, CheckConstraint) and check.name]


def rendered(page: str) -> str:
    """The page with its generated part replaced."""
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    return re.sub(pattern, lambda _: f"{BEGIN}\n\n{describe()}\n\n{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
