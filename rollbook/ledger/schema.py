"""The part of the schema that holds no rows (row digests, guards, views, grants), and the locks to change a schema.

Workers go on in the meantime. The body of a function is replaced without a lock on any table, so only what differs is
touched: views when views.sql has changed, triggers that are missing or differ from guards.sql.

A migration never waits for a lock while it holds one that others may wait for, so it is part of no deadlock and
Postgres never aborts a worker for it. First it queues for the gate, in a mode that lets readers pass; once it holds
that, writers wait at their first statement without holding locks. The other locks are requested without waiting, for a
moment; if one is not available, all are released and the whole is tried again later.
"""

import hashlib
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from models.identity import canonical_json
from rollbook.errors import LedgerError
from rollbook.ledger.sql import SQL, statements
from rollbook.ledger.tables import metadata

T = TypeVar("T")
Trigger = tuple[str, str]
"""Table and name."""

SCRIPTS = ("row_digests.sql", "guards.sql", "views.sql", "grants.sql")
"""Loaded in this order after the revisions."""

GATE = "rollout"
"""Every write of an episode locks its row here before anything else (see rollbook.ledger.fence)."""
LOCK_TIMEOUT_S = 3
"""Time that a migration waits for a table, and so may delay later statements on it."""
POLL_S = 2.0
"""Time for which it requests the other tables while it holds the gate."""
TRIES = 8
"""Tries of the whole, with growing pauses: about a minute and a half in all."""
OTHERS_S = 600
"""Time that it waits for another migration, holding no lock."""

_MIGRATIONS = 7_461_203_351
_REVISIONS = "alembic_version"
_NOT_AVAILABLE, _DEADLOCK = "55P03", "40P01"
_SQL = statements("schema")


# Locks ---------------------------------------------------------------------------------------------------------------


def with_retries(engine: Engine, what: str, work: Callable[[Connection], T]) -> T:
    """Run `work` in a transaction, one migration at a time, and again while its locks are not available.

    Raises LedgerError that names the open transactions when the tries are used up; then nothing has changed.
    """
    for number in range(TRIES):
        if number:
            time.sleep(min(0.5 * 2**number, 20) * random.uniform(0.5, 1))
        try:
            with engine.begin() as connection:
                _set_lock_timeout(connection, f"{OTHERS_S}s")
                _lock_migrations(connection)
                _set_lock_timeout(connection, f"{LOCK_TIMEOUT_S}s")
                return work(connection)
        except (DBAPIError, psycopg.Error) as error:
            if _sqlstate(error) not in (_NOT_AVAILABLE, _DEADLOCK):
                raise
    raise LedgerError(
        f"{what}: tables of the ledger stayed in use during {TRIES} tries, nothing was changed. "
        f"{_open_transactions(engine)}"
    )


def _lock_migrations(connection: Connection) -> None:
    # Any login can hold an advisory lock, so it serves an empty database only. A table's lock of this mode needs a
    # right that no role of the ledger has, and lets readers of the revision pass.
    if not _exists(connection, _REVISIONS):
        connection.execute(_SQL["lock_migrations"], {"key": _MIGRATIONS})
    if _exists(connection, _REVISIONS):  # perhaps made while this one waited
        connection.execute(text(f"LOCK TABLE {_REVISIONS} IN SHARE ROW EXCLUSIVE MODE"))


def lock(connection: Connection, relations: Sequence[str]) -> None:
    """Lock tables and views exclusively until the transaction ends."""
    if not relations:
        return
    if _exists(connection, GATE):
        connection.execute(text(f"LOCK TABLE {GATE} IN EXCLUSIVE MODE"))
    statement = text(f"LOCK TABLE {', '.join(relations)} IN ACCESS EXCLUSIVE MODE NOWAIT")
    _poll(connection, lambda: connection.execute(statement))


def _poll(connection: Connection, work: Callable[[], object]) -> None:
    # In a savepoint: everything that a failed try has locked is released before the next one.
    ends_at = time.monotonic() + POLL_S
    while True:
        try:
            with connection.begin_nested():
                work()
                return
        except (DBAPIError, psycopg.Error) as error:
            if _sqlstate(error) != _NOT_AVAILABLE or time.monotonic() >= ends_at:
                raise
        time.sleep(0.02)


def _set_lock_timeout(connection: Connection, timeout: str) -> None:
    connection.execute(text(f"SET LOCAL lock_timeout = '{timeout}'"))


def _sqlstate(error: DBAPIError | psycopg.Error) -> str | None:
    return getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None)


def _open_transactions(engine: Engine) -> str:
    with engine.connect() as connection:
        rows = connection.execute(_SQL["open_transactions"]).mappings().all()
    if not rows:
        return "The tables were locked by many short transactions. Retry when load is lower"
    names = "; ".join(
        f"pid {row['pid']} ({row['usename']}, {row['program']}, {row['state']}, open for {row['open_s']} s): "
        f"{' '.join(row['query'].split())}"
        for row in rows
    )
    return f"Open transactions: {names}. Let them end (or pg_terminate_backend), then `rollbook migrate` again"


# Code ----------------------------------------------------------------------------------------------------------------


def code_digest() -> str:
    """Digest of the scripts: a database with another one needs `load_code`."""
    return hashlib.sha256("\n".join(_read(name) for name in SCRIPTS).encode()).hexdigest()


def loaded_digest(connection: Connection) -> str | None:
    """Digest of the scripts that the database has loaded; None without any."""
    note = _note(connection)
    return note["digest"] if note else None


def load_code(connection: Connection) -> None:
    """Load what differs from what is loaded, and record it in the function `schema_code`."""
    note = _note(connection) or {}
    parts = {name: hashlib.sha256(_read(name).encode()).hexdigest() for name in SCRIPTS}
    stale = {name for name in SCRIPTS if note.get("parts", {}).get(name) != parts[name]}
    if "row_digests.sql" in stale:
        run_script(connection, _read("row_digests.sql"))
    others = views_of(connection) if "views.sql" in stale else []
    triggers = _load_guards(connection, [(table, name) for table, name in note.get("triggers", [])], others)
    if "views.sql" in stale:
        _load_views(connection, note.get("views", []))
    run_script(connection, _read("grants.sql"))
    note = {
        "digest": code_digest(),
        "parts": parts,
        "views": re.findall(r"^CREATE VIEW (\w+)", _read("views.sql"), re.MULTILINE),
        "seals": re.findall(r"^CREATE OR REPLACE FUNCTION seal\(r (\w+)\)", _read("row_digests.sql"), re.MULTILINE),
        "triggers": triggers,
    }
    run_script(
        connection,
        "CREATE OR REPLACE FUNCTION schema_code() RETURNS jsonb LANGUAGE sql IMMUTABLE "
        f"RETURN '{canonical_json(note)}'::jsonb; "
        "COMMENT ON FUNCTION schema_code() IS 'which guards, row digests and views are loaded';",
    )


def drop_code(connection: Connection) -> None:
    """Drop views and row digests, which depend on tables and would block a change of them. Guards stay.

    The caller holds the locks (see `views_of`), or is alone.
    """
    if note := _note(connection):
        for view in reversed(note["views"]):
            run_script(connection, f"DROP VIEW IF EXISTS {view}")
        for table in note["seals"]:
            run_script(connection, f"DROP FUNCTION IF EXISTS seal({table})")
        run_script(connection, "DROP FUNCTION schema_code()")


def tables_of(connection: Connection) -> list[str]:
    """The ledger's tables that exist, in the order of their dependencies."""
    return [table.name for table in metadata.sorted_tables if _exists(connection, table.name)]


def views_of(connection: Connection) -> list[str]:
    """The loaded views that still exist."""
    return [view for view in (_note(connection) or {}).get("views", []) if _exists(connection, view)]


def run_script(connection: Connection, script: str) -> None:
    """Run a script of several statements as it is; without parameters, % and : have no meaning."""
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute(script)


def _load_guards(connection: Connection, loaded: list[Trigger], also: list[str]) -> list[Trigger]:
    """Replace the functions of the guards, then the triggers that are missing or differ; returns all declared ones.

    `also`: further relations to lock if any table must be locked.
    """
    declared = _declared_triggers(connection)
    present = _triggers(connection, shadows=False)
    removed = [trigger for trigger in loaded if trigger not in declared and trigger in present]
    changed = [trigger for trigger, definition in declared.items() if present.get(trigger) != definition]
    if tables := sorted({table for table, _ in changed + removed}):
        lock(connection, tables + also)
    for table, name in changed + removed:
        if (table, name) in present:
            run_script(connection, f"DROP TRIGGER {name} ON {table}")
    for trigger in changed:
        run_script(connection, declared[trigger].rpartition(";")[0])
    return sorted(declared)


def _load_views(connection: Connection, loaded: list[str]) -> None:
    def replace() -> None:
        # DROP VIEW has no NOWAIT: each statement waits for its locks for a millisecond.
        _set_lock_timeout(connection, "1ms")
        for view in reversed(loaded):
            run_script(connection, f"DROP VIEW IF EXISTS {view}")
        run_script(connection, _read("views.sql"))
        _set_lock_timeout(connection, f"{LOCK_TIMEOUT_S}s")

    _poll(connection, replace)


def _declared_triggers(connection: Connection) -> dict[Trigger, str]:
    """Run guards.sql over empty temporary tables of the same names and read which triggers it creates.

    Temporary tables hide the real ones, so no table of the ledger is locked, and Postgres itself writes the definition
    in the form in which it reports existing triggers. The functions are the real ones afterwards.
    """
    tables = tables_of(connection)
    schema = connection.scalar(text("SELECT quote_ident(current_schema())"))
    run_script(connection, "".join(f"CREATE TEMPORARY TABLE {name} (LIKE {schema}.{name});" for name in tables))
    run_script(connection, _read("guards.sql"))
    declared = _triggers(connection, shadows=True)
    run_script(connection, "".join(f"DROP TABLE pg_temp.{name};" for name in tables))
    return declared


def _triggers(connection: Connection, *, shadows: bool) -> dict[Trigger, str]:
    rows = connection.execute(_SQL["triggers"], {"shadows": shadows})
    return {(table, name): definition for table, name, definition in rows}


def _exists(connection: Connection, relation: str) -> bool:
    return bool(connection.scalar(text("SELECT to_regclass(:relation) IS NOT NULL"), {"relation": relation}))


def _note(connection: Connection) -> dict[str, Any] | None:
    # What was loaded last. Notes of older versions hold fewer keys.
    if not connection.scalar(text("SELECT to_regprocedure('schema_code()') IS NOT NULL")):
        return None
    note: dict[str, Any] = connection.scalar(text("SELECT schema_code()"))
    return note


def _read(name: str) -> str:
    return (SQL / name).read_text()
