"""Brings a database to the current schema: tables by Alembic revisions, guards, views and grants as a whole.

Everything happens in one transaction under an advisory lock: two processes that migrate at once wait for each other,
and a failure leaves the database as it was. Locks are waited for 30 s at most, so that a migration gives up rather
than standing in the way of the workers.
"""

import hashlib
import re
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text

import migrations
from models.identity import canonical_json
from rollbook.errors import ConfigError

SQL = Path(__file__).parent / "sql"
SCRIPTS = ("seals.sql", "guards.sql", "views.sql", "grants.sql")
"""Loaded in this order after the revisions, whenever one of them has changed."""

OLDEST_SERVER = 14
"""Oldest major version of Postgres: functions with an SQL body, triggers that can be replaced."""

_LOCK = 7_461_203_351
_KNOWN = text("SELECT to_regprocedure('schema_code()') IS NOT NULL")


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database at `url` (`postgresql+psycopg://…`) to `revision`; a current one is left alone."""
    engine = _engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            _migrate(connection, revision)
    finally:
        engine.dispose()


def downgrade(url: str, revision: str) -> None:
    """Go back to `revision`. For a failed deployment: newer tables are dropped, with their rows."""
    engine = _engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            drop_code(connection)
            command.downgrade(_config(connection), revision)
            if revision == _head():
                load_code(connection)
    finally:
        engine.dispose()


def current(url: str) -> str | None:
    """Revision of the database at `url`; None for an empty one."""
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            return _revision(connection)
    finally:
        engine.dispose()


def is_current(url: str) -> bool:
    """Whether the database at `url` has the newest tables, guards and views."""
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            return _is_current(connection)
    finally:
        engine.dispose()


def code_digest() -> str:
    """Digest of guards, views and grants: another digest, and they are loaded again."""
    return hashlib.sha256("\n".join((SQL / name).read_text() for name in SCRIPTS).encode()).hexdigest()


def load_code(connection: Connection) -> None:
    """Load seals, guards, views and grants, and note what was loaded."""
    for name in SCRIPTS:
        _script(connection, (SQL / name).read_text())
    views = re.findall(r"^CREATE VIEW (\w+)", (SQL / "views.sql").read_text(), re.MULTILINE)
    seals = re.findall(r"^CREATE OR REPLACE FUNCTION seal\(r (\w+)\)", (SQL / "seals.sql").read_text(), re.MULTILINE)
    note = canonical_json({"digest": code_digest(), "views": views, "seals": seals})
    _script(
        connection,
        "CREATE OR REPLACE FUNCTION schema_code() RETURNS jsonb LANGUAGE sql IMMUTABLE "
        f"RETURN '{note}'::jsonb; COMMENT ON FUNCTION schema_code() IS 'which guards, seals and views are loaded';",
    )


def drop_code(connection: Connection) -> None:
    """Drop what depends on tables and so stands in the way of their changes: views and seals. Guards stay."""
    if connection.scalar(_KNOWN):
        note = connection.scalar(text("SELECT schema_code()"))
        for view in reversed(note["views"]):
            _script(connection, f"DROP VIEW IF EXISTS {view}")
        for table in note["seals"]:
            _script(connection, f"DROP FUNCTION IF EXISTS seal({table})")
        _script(connection, "DROP FUNCTION schema_code()")


def _migrate(connection: Connection, revision: str) -> None:
    version = connection.scalar(text("SELECT current_setting('server_version_num')::integer"))
    if version < OLDEST_SERVER * 10_000:
        raise ConfigError(
            f"ROLLBOOK_DATABASE_URL: the server is Postgres {version // 10_000}, "
            f"the ledger needs {OLDEST_SERVER} or newer"
        )
    if revision == "head" and _is_current(connection):
        return
    drop_code(connection)
    command.upgrade(_config(connection), revision)
    if _revision(connection) == _head():
        load_code(connection)


def _is_current(connection: Connection) -> bool:
    if _revision(connection) != _head() or not connection.scalar(_KNOWN):
        return False
    return bool(connection.scalar(text("SELECT schema_code() ->> 'digest'")) == code_digest())


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _head() -> str | None:
    return ScriptDirectory.from_config(_config(None)).get_current_head()


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _engine(url: str) -> Engine:
    options = "-c lock_timeout=30s -c statement_timeout=600s -c client_min_messages=warning"
    return create_engine(url, connect_args={"options": options, "connect_timeout": 10})


def _script(connection: Connection, script: str) -> None:
    """Run a script of several statements as it is: without parameters, % and : mean themselves."""
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute(script)
