"""`sql`: psql on the ledger, read-only; without psql a small runner for one query."""

import math
import os
import shutil
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from rollbook.cli.aio import finish
from rollbook.cli.opening import settings
from rollbook.cli.options import AsJson
from rollbook.cli.out import print_json, print_table
from rollbook.errors import ConfigError, InvalidInput
from rollbook.stack.connections import ledger_url

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


def sql(
    query: Annotated[str | None, typer.Option("-c", "--command", help="Run one query and leave.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the ledger in SQL. The session is read-only: `rollbook` and the workers write, people ask."""
    url = ledger_url(settings()).replace("+psycopg", "", 1)
    if as_json:
        if query is None:
            raise InvalidInput("--json: only with -c QUERY")
        finish(_run(url, query, True))
    elif psql := shutil.which("psql"):
        _become(psql, url, query)
    elif query is not None:
        finish(_run(url, query, False))
    else:
        raise ConfigError("psql is not installed: `apt-get install postgresql-client`, or give one query with -c")


def _become(psql: str, url: str, query: str | None) -> None:
    """Replace this process by psql. The password goes by environment: arguments are visible to everybody."""
    arguments = [psql, "--no-psqlrc", "-v", "ON_ERROR_STOP=1", *(["-c", query] if query is not None else [])]
    os.execve(psql, arguments, psql_environment(url))


def psql_environment(url: str) -> dict[str, str]:
    """The environment in which psql finds the ledger."""
    given: dict[str, Any] = conninfo_to_dict(url)
    chosen = {name: str(given[key]) for key, name in _VARIABLES.items() if given.get(key) is not None}
    options = f"{given.get('options') or ''} {_READ_ONLY}".strip()
    return {**os.environ, **chosen, "PGOPTIONS": options, "PGAPPNAME": "rollbook sql"}


async def _run(url: str, query: str, as_json: bool) -> int:
    try:
        async with await psycopg.AsyncConnection.connect(url, row_factory=dict_row, autocommit=False) as connection:
            await connection.set_read_only(True)
            cursor = await connection.execute(query.encode())
            rows = await cursor.fetchall() if cursor.description else []
            names = [column.name for column in cursor.description or []]
    except psycopg.OperationalError as error:
        raise ConfigError(f"the ledger does not answer: {error}") from error
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
