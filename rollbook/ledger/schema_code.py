"""The part of the schema that holds no rows: seals, guards, views and grants, loaded from `sql/` when it has changed.

Workers go on meanwhile. The body of a function is replaced without a lock on any table, so only what really differs is
touched: views when views.sql has changed, triggers that are missing or other than guards.sql says.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from models.identity import canonical_json
from rollbook.ledger.schema_locks import at_once, lock
from rollbook.ledger.tables import metadata

SQL = Path(__file__).parent / "sql"
SCRIPTS = ("row_digests.sql", "guards.sql", "views.sql", "grants.sql")
"""Loaded in this order after the revisions."""

_KNOWN = text("SELECT to_regprocedure('schema_code()') IS NOT NULL")
_TRIGGERS = text("""
    SELECT relname, tgname, pg_get_triggerdef(pg_trigger.oid, true) || ';' || tgenabled::text AS definition
    FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE NOT tgisinternal
        AND relnamespace = CASE WHEN :shadows THEN pg_my_temp_schema() ELSE current_schema()::regnamespace::oid END
""")
_TABLES = text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")

Trigger = tuple[str, str]
"""Table and name."""


def code_digest() -> str:
    """Digest of seals, guards, views and grants: another digest, and what has changed of them is loaded."""
    return hashlib.sha256("\n".join(_read(name) for name in SCRIPTS).encode()).hexdigest()


def loaded_digest(connection: Connection) -> str | None:
    """Digest of what is loaded; None when nothing is."""
    note = _note(connection)
    return note["digest"] if note else None


def load_code(connection: Connection) -> None:
    """Load what differs from what is loaded, and note it."""
    note = _note(connection) or {}
    parts = {name: hashlib.sha256(_read(name).encode()).hexdigest() for name in SCRIPTS}
    stale = {name for name in SCRIPTS if note.get("parts", {}).get(name) != parts[name]}
    views = re.findall(r"^CREATE VIEW (\w+)", _read("views.sql"), re.MULTILINE)
    seals = re.findall(r"^CREATE OR REPLACE FUNCTION seal\(r (\w+)\)", _read("row_digests.sql"), re.MULTILINE)
    if "row_digests.sql" in stale:
        run_script(connection, _read("row_digests.sql"))
    others = views_of(connection) if "views.sql" in stale else []
    triggers = _load_guards(connection, [(table, name) for table, name in note.get("triggers", [])], others)
    if "views.sql" in stale:
        _load_views(connection, note.get("views", []))
    run_script(connection, _read("grants.sql"))
    known = {"digest": code_digest(), "parts": parts, "views": views, "seals": seals, "triggers": triggers}
    run_script(
        connection,
        "CREATE OR REPLACE FUNCTION schema_code() RETURNS jsonb LANGUAGE sql IMMUTABLE "
        f"RETURN '{canonical_json(known)}'::jsonb; "
        "COMMENT ON FUNCTION schema_code() IS 'which guards, seals and views are loaded';",
    )


def drop_code(connection: Connection) -> None:
    """Drop what depends on tables and so stands in the way of their changes: views and seals. Guards stay.

    For those who hold the locks (see `views_of`), or are alone.
    """
    if note := _note(connection):
        for view in reversed(note["views"]):
            run_script(connection, f"DROP VIEW IF EXISTS {view}")
        for table in note["seals"]:
            run_script(connection, f"DROP FUNCTION IF EXISTS seal({table})")
        run_script(connection, "DROP FUNCTION schema_code()")


def tables_of(connection: Connection) -> list[str]:
    """Those tables of ours that exist, in the order of their dependencies."""
    there = set(connection.execute(_TABLES).scalars())
    return [table.name for table in metadata.sorted_tables if table.name in there]


def views_of(connection: Connection) -> list[str]:
    """The views that are loaded and still there."""
    exists = text("SELECT to_regclass(:view) IS NOT NULL")
    note = _note(connection) or {}
    return [view for view in note.get("views", []) if connection.scalar(exists, {"view": view})]


def run_script(connection: Connection, script: str) -> None:
    """Run a script of several statements as it is: without parameters, % and : mean themselves."""
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute(script)


def _load_guards(connection: Connection, known: list[Trigger], also: list[str]) -> list[Trigger]:
    """Replace the guards' functions, then those triggers that are missing or changed. Returns all that there are.

    `also`: what else must be locked if any table must.
    """
    declared = _declared(connection)
    present = _triggers(connection, shadows=False)
    gone = [trigger for trigger in known if trigger not in declared and trigger in present]
    changed = [trigger for trigger, definition in declared.items() if present.get(trigger) != definition]
    if tables := sorted({table for table, _ in changed + gone}):
        lock(connection, tables + also)
    for table, name in changed + gone:
        if (table, name) in present:
            run_script(connection, f"DROP TRIGGER {name} ON {table}")
    for trigger in changed:
        run_script(connection, declared[trigger].rpartition(";")[0])
    return sorted(declared)


def _load_views(connection: Connection, known: list[str]) -> None:
    def replace() -> None:
        for view in reversed(known):
            run_script(connection, f"DROP VIEW IF EXISTS {view}")
        run_script(connection, _read("views.sql"))

    at_once(connection, replace)


def _declared(connection: Connection) -> dict[Trigger, str]:
    """Run guards.sql over empty tables of the same names, which hide ours, and see which triggers it makes.

    Its functions are the real ones afterwards, and no table of ours was locked; Postgres itself says what a trigger's
    definition comes to, in the words in which it will say it of ours.
    """
    tables = tables_of(connection)
    schema = connection.scalar(text("SELECT quote_ident(current_schema())"))
    run_script(connection, "".join(f"CREATE TEMPORARY TABLE {name} (LIKE {schema}.{name});" for name in tables))
    run_script(connection, _read("guards.sql"))
    declared = _triggers(connection, shadows=True)
    run_script(connection, "".join(f"DROP TABLE pg_temp.{name};" for name in tables))
    return declared


def _triggers(connection: Connection, *, shadows: bool) -> dict[Trigger, str]:
    rows = connection.execute(_TRIGGERS, {"shadows": shadows})
    return {(table, name): definition for table, name, definition in rows}


def _note(connection: Connection) -> dict[str, Any] | None:
    """What was loaded last; notes of older versions know fewer things."""
    if not connection.scalar(_KNOWN):
        return None
    note: dict[str, Any] = connection.scalar(text("SELECT schema_code()"))
    return note


def _read(name: str) -> str:
    return (SQL / name).read_text()
