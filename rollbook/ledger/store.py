"""Engine and transactions of the ledger, and the base class of everything that reads or writes it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from copy import copy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from models.identity import canonical_json
from rollbook.errors import ConfigError, LedgerConflict

GUARD = "RB001"
"""SQLSTATE of the guards in `sql/guards.sql`."""

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Store")


def create_engine(url: str, *, pool_size: int = 10, role: str | None = None) -> AsyncEngine:
    """Create an engine for the ledger at `url` (`postgresql+psycopg://…`).

    `role`: work as this database role (for instance `rollbook_worker`), if the login may.
    Statements are bounded: 120 s each, 30 s waiting for a lock, 60 s idle inside a transaction.
    """
    options = "-c statement_timeout=120s -c lock_timeout=30s -c idle_in_transaction_session_timeout=60s"
    # text forms of times that the driver reads, whatever the database's default is
    options += r" -c datestyle=ISO,\ MDY"
    # READ COMMITTED whatever the database's default is: under any other level a statement that follows a lock
    # does not see what was committed while the lock was waited for.
    options += r" -c default_transaction_isolation=read\ committed"
    if role is not None:
        options += f" -c role={role}"
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_recycle=1800,
        json_serializer=canonical_json,
        connect_args={"options": options, "connect_timeout": 10},
    )
    event.listen(engine.sync_engine, "connect", _require_settings)
    return engine


def _require_settings(connection: DBAPIConnection, record: Any) -> None:
    """Raise ConfigError where a connection pooler has dropped the settings of the session: role, limits, isolation."""
    cursor = connection.cursor()
    cursor.execute("SELECT current_setting('statement_timeout')")
    (timeout,) = cursor.fetchone() or ("",)
    cursor.close()
    connection.rollback()
    if timeout != "2min":
        raise ConfigError(
            "ROLLBOOK_DATABASE_URL: a connection pooler drops the settings of a session; connect to Postgres itself, "
            "or to a pooler in session mode that passes `options` on"
        )


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open one transaction (READ COMMITTED): lock first, then decide in separate statements.

    Raises LedgerConflict where a constraint or a guard of the database refuses. A lost connection stays
    SQLAlchemy's OperationalError: the caller may try again, every ledger call is idempotent.
    """
    try:
        async with engine.begin() as connection:
            yield connection
    except IntegrityError as error:
        raise LedgerConflict(_explain(error)) from error
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == GUARD:
            raise LedgerConflict(_explain(error)) from error
        raise


def _explain(error: DBAPIError) -> str:
    diag: Any = getattr(error.orig, "diag", None)
    parts = [getattr(diag, name, None) for name in ("message_primary", "message_detail", "message_hint")]
    return "; ".join(part for part in parts if part) or str(error.orig)


class Store:
    """A connection pool. Subclasses group the ledger's calls by subject; each call is one transaction."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._conn: AsyncConnection | None = None

    @classmethod
    def connect(cls, url: str, pool_size: int = 10, role: str | None = None) -> Self:
        """Create a store for `url` (`postgresql+psycopg://…`); connects on first use. `role`: the database role."""
        return cls(create_engine(url, pool_size=pool_size, role=role))

    async def aclose(self) -> None:
        """Close every connection."""
        await self.engine.dispose()

    def on(self, conn: AsyncConnection) -> Self:
        """The same calls on an open connection, as part of its transaction."""
        bound = copy(self)
        bound._conn = conn
        return bound

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction, or continue the one this store is bound to."""
        if self._conn is not None:
            yield self._conn
            return
        async with transaction(self.engine) as conn:
            yield conn

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection for single reads; each sees what is committed by then, without BEGIN and COMMIT around it."""
        if self._conn is not None:
            yield self._conn
            return
        async with self.engine.connect() as conn:
            await conn.execution_options(isolation_level="AUTOCOMMIT")
            yield conn


def writes(
    method: Callable[Concatenate[S, AsyncConnection, P], Awaitable[R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Run a method in one transaction; the method receives its connection, the caller does not pass one."""

    @wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async with self.transaction() as conn:
            return await method(self, conn, *args, **kwargs)

    return run


def reads(
    method: Callable[Concatenate[S, AsyncConnection, P], Awaitable[R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Run a method on a connection for single reads; the caller does not pass the connection."""

    @wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async with self.reading() as conn:
            return await method(self, conn, *args, **kwargs)

    return run
