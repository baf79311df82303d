"""Connections and transactions: one short transaction per ledger call, errors in our own tree."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from models.identity import canonical_json
from rollbook.errors import LedgerConflict

GUARD = "RB001"
"""SQLSTATE of the guards in `sql/guards.sql`."""


def create_engine(url: str, *, pool_size: int = 10, role: str | None = None) -> AsyncEngine:
    """An engine for the ledger at `url` (`postgresql+psycopg://…`).

    `role`: work as this database role (for instance `rollbook_worker`), if the login may.
    Statements are bounded: 120 s each, 30 s waiting for a lock, 60 s idle inside a transaction. Transactions are READ
    COMMITTED, whatever the database's default is: under any other level a lock shows nothing new.
    """
    options = "-c statement_timeout=120s -c lock_timeout=30s -c idle_in_transaction_session_timeout=60s"
    options += r" -c default_transaction_isolation=read\ committed"
    if role is not None:
        options += f" -c role={role}"
    return create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_recycle=1800,
        json_serializer=canonical_json,
        connect_args={"options": options, "connect_timeout": 10},
    )


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """One transaction (READ COMMITTED): lock first, then decide in separate statements.

    Raises LedgerConflict where a constraint or a guard of the database refuses. Lost connections stay
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


@asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection for single reads, each seeing what is committed by then; no BEGIN and COMMIT around them."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


def _explain(error: DBAPIError) -> str:
    diag: Any = getattr(error.orig, "diag", None)
    parts = [getattr(diag, name, None) for name in ("message_primary", "message_detail", "message_hint")]
    return "; ".join(part for part in parts if part) or str(error.orig)
