"""Locks for a change of the schema, taken so that no worker is ever aborted for it and none waits for long.

A migration never waits for a lock while it holds another that somebody may wait for: so it is part of no deadlock, and
Postgres, which aborts whoever notices one first, has nobody to choose. First it queues for the one table whose rows
every writer locks first, in a mode that lets readers pass; once it has that, writers stand at their first statement and
hold nothing. The rest is asked for without waiting, again and again for a moment. What is not to be had in time is
given back, all of it, and tried again later.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from rollbook.errors import LedgerError

T = TypeVar("T")

GATE = "rollout"
"""Every write of an episode locks its row here before anything else (see rollbook.ledger.fence)."""

LOCK_TIMEOUT_S = 3
"""How long a migration stands in the queue for a table, and so how long it may hold up those who come after it."""
POLL_S = 2.0
"""How long it asks for the other tables while it holds the gate."""
TRIES = 8
"""Tries of the whole, with growing pauses: about a minute and a half in all."""
OTHERS_S = 600
"""How long it waits for another migration, holding nothing."""

_MIGRATIONS = 7_461_203_351
_NOT_AVAILABLE, _DEADLOCK = "55P03", "40P01"

_IN_THE_WAY = text("""
    SELECT DISTINCT activity.pid, usename, coalesce(nullif(application_name, ''), 'unnamed') AS program, state,
           extract(epoch FROM now() - xact_start)::integer AS open_s, left(query, 80) AS query
    FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
    WHERE relation = ANY(SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace)
        AND granted AND pid <> pg_backend_pid() AND xact_start < now() - interval '1 second'
    ORDER BY open_s DESC LIMIT 5
""")


def patiently(engine: Engine, what: str, work: Callable[[Connection], T]) -> T:
    """Run `work` in a transaction, one migration at a time; again from the start while tables are not to be had.

    Raises LedgerError, with who is in the way, when the tries are used up; then nothing has changed.
    """
    for number in range(TRIES):
        if number:
            time.sleep(min(0.5 * 2**number, 20) * random.uniform(0.5, 1))
        try:
            with engine.begin() as connection:
                _wait_for(connection, OTHERS_S)
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATIONS})
                _wait_for(connection, LOCK_TIMEOUT_S)
                return work(connection)
        except (DBAPIError, psycopg.Error) as error:
            if _state(error) not in (_NOT_AVAILABLE, _DEADLOCK):
                raise
    raise LedgerError(
        f"{what}: tables of the ledger stayed in use during {TRIES} tries, nothing was changed. {_in_the_way(engine)}"
    )


def lock(connection: Connection, relations: Sequence[str]) -> None:
    """Lock tables and views exclusively until the transaction ends; nobody who waits for us is waited for meanwhile."""
    if not relations:
        return
    if connection.scalar(text("SELECT to_regclass(:gate)"), {"gate": GATE}) is not None:
        connection.execute(text(f"LOCK TABLE {GATE} IN EXCLUSIVE MODE"))
    statement = text(f"LOCK TABLE {', '.join(relations)} IN ACCESS EXCLUSIVE MODE NOWAIT")
    poll(connection, lambda: connection.execute(statement))


def poll(connection: Connection, work: Callable[[], object]) -> None:
    """Try `work` in a savepoint until it gets its locks; everything it locked is given back between two tries."""
    ends_at = time.monotonic() + POLL_S
    while True:
        try:
            with connection.begin_nested():
                work()
                return
        except (DBAPIError, psycopg.Error) as error:
            if _state(error) != _NOT_AVAILABLE or time.monotonic() >= ends_at:
                raise
        time.sleep(0.02)


def at_once(connection: Connection, work: Callable[[], object]) -> None:
    """`poll` for statements that have no NOWAIT: each may wait for its locks for a millisecond."""

    def hasty() -> None:
        connection.execute(text("SET LOCAL lock_timeout = '1ms'"))
        work()
        _wait_for(connection, LOCK_TIMEOUT_S)

    poll(connection, hasty)


def _wait_for(connection: Connection, seconds: int) -> None:
    connection.execute(text(f"SET LOCAL lock_timeout = '{seconds}s'"))


def _state(error: DBAPIError | psycopg.Error) -> str | None:
    return getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None)


def _in_the_way(engine: Engine) -> str:
    with engine.connect() as connection:
        found = connection.execute(_IN_THE_WAY).mappings().all()
    if not found:
        return "No transaction stays open just now: many short ones were in the way. Try again when there is less to do"
    names = "; ".join(
        f"pid {row['pid']} ({row['usename']}, {row['program']}, {row['state']}, open for {row['open_s']} s): "
        f"{' '.join(row['query'].split())}"
        for row in found
    )
    return f"Open transactions: {names}. Let them end (or pg_terminate_backend), then `rollbook migrate` again"
