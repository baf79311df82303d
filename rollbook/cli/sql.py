"""`sql`: psql on the ledger, as a role that may only read the views; without psql a small runner for one query.

A login that owns the tables could undo a read-only session with one SET; after it, the role `rollbook_reader` still may
not write: mistakes end there. It does not bind a login that may become the owner: give people separate logins.
"""

import asyncio
import math
import os
import shutil
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from rollbook.cli.command import AsJson, finish
from rollbook.cli.connections import settings
from rollbook.cli.out import note, print_json, print_table
from rollbook.config.connections import ledger_url
from rollbook.errors import ConfigError, InvalidInput

READER = "rollbook_reader"
"""The role that reads the views, and nothing else."""

_READ_ONLY = "-c default_transaction_read_only=on"

_VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
}


Tables = Annotated[
    bool,
    typer.Option(
        "--tables", help="See the tables too, as the login of the other commands; read-only by a setting alone."
    ),
]


def sql(
    query: Annotated[str | None, typer.Option("-c", "--command", help="Run one query and leave.")] = None,
    tables: Tables = False,
    as_json: AsJson = False,
) -> None:
    """Ask the ledger in SQL: the views, as rollbook_reader. `rollbook` and the workers write, people ask."""
    url = ledger_url(settings(), "operator" if tables else "reader").replace("+psycopg", "", 1)
    if as_json and query is None:
        raise InvalidInput("--json: only with -c QUERY")
    psql = None if as_json else shutil.which("psql")
    if psql is None and query is None:
        raise ConfigError("psql is not installed: `apt-get install postgresql-client`, or give one query with -c")
    role = None if tables else asyncio.run(_reader(url))
    if psql is not None:
        _become(psql, url, query, role)
    elif query is not None:
        finish(_run(url, query, role, as_json))


async def _reader(url: str) -> str | None:
    """The reading role; None, said on stderr, where the login cannot become it."""
    try:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute(f"SET ROLE {READER}")
    except psycopg.OperationalError as error:
        raise ConfigError(f"the ledger does not answer: {error}") from error
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue) as error:
        login = conninfo_to_dict(url).get("user") or "this login"
        note(
            f"not as {READER} ({error.diag.message_primary}): the session is read-only by a setting alone. "
            f"`rollbook migrate` creates the role; GRANT {READER} TO {login} lets it be used"
        )
        return None
    return READER


def _become(psql: str, url: str, query: str | None, role: str | None) -> None:
    """Replace this process by psql. The password goes by environment: arguments are visible to everybody."""
    # A psqlrc could end the read-only mode, or print something of its own into the result.
    arguments = [psql, "--no-psqlrc", "-v", "ON_ERROR_STOP=1", *(["-c", query] if query is not None else [])]
    os.execve(psql, arguments, psql_environment(url, role))


def psql_environment(url: str, role: str | None = READER) -> dict[str, str]:
    """The environment in which psql finds the ledger, and works as `role`."""
    connection: dict[str, Any] = conninfo_to_dict(url)
    chosen = {name: str(connection[key]) for key, name in _VARIABLES.items() if connection.get(key) is not None}
    return {**os.environ, **chosen, "PGOPTIONS": _options(url, role), "PGAPPNAME": "rollbook sql"}


def _options(url: str, role: str | None) -> str:
    """Settings with which the session begins, after those of the URL; RESET returns to them."""
    parts = [conninfo_to_dict(url).get("options"), _READ_ONLY, f"-c role={role}" if role else None]
    return " ".join(str(part) for part in parts if part)


async def _run(url: str, query: str, role: str | None, as_json: bool) -> int:
    connecting = psycopg.AsyncConnection.connect(url, row_factory=dict_row, options=_options(url, role))
    try:
        async with await connecting as connection:
            cursor = await connection.execute(query.encode())
            # A statement such as SET has no rows to fetch.
            rows = await cursor.fetchall() if cursor.description else []
            names = [column.name for column in cursor.description or []]
    except psycopg.OperationalError as error:
        raise ConfigError(f"the ledger does not answer: {error}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        hint = f"; {READER} reads the views, --tables the tables" if role else ""
        raise InvalidInput(f"query: {error.diag.message_primary}{hint}") from error
    except psycopg.Error as error:
        raise InvalidInput(f"query: {error}") from error
    if as_json:
        print_json([{name: _finite(row[name]) for name in names} for row in rows])
    else:
        print_table(names, [[_cell(row[name]) for name in names] for row in rows])
    return 0


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
