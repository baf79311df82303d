"""Brings a database to the current schema while workers use it.

Tables change by Alembic revisions, in one of two phases: `pre` revisions are applied before new workers are started and
only add what the old ones can live with; `post` revisions (checks that are validated, removal of unused parts) after
the last old worker is gone. Row digests, guards, views and grants follow the last `pre` revision.

Each phase is one transaction: a failure leaves the database as it was. See rollbook.ledger.schema for its locks.
"""

import os
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text

import migrations
from rollbook.errors import ConfigError
from rollbook.ledger.schema import (
    code_digest,
    drop_code,
    load_code,
    loaded_digest,
    lock,
    tables_of,
    views_of,
    with_retries,
)

Phase = Literal["pre", "post", "all"]

OLDEST_SERVER = 14
"""Oldest major version of Postgres: functions with an SQL body, triggers that can be replaced."""

VERSIONS = [Path(migrations.__file__).parent / "versions"]
"""Directories of revisions."""


def upgrade(url: str, revision: str = "head", *, phase: Phase = "all") -> list[str]:
    """Bring the database at `url` (`postgresql+psycopg://…`) to `revision`; a current one is left alone.

    `phase`: `pre` before new workers are started, `post` after the last old one is gone, `all` where none run or the
    revisions are harmless to them. Returns the revisions that are left for later: `post` ones, after `pre`.
    Raises ConfigError when the phases would get out of order, LedgerError when tables stay in use.
    """
    engine = _engine(url)
    try:
        for steps in _runs(_chosen(_pending(engine, revision), phase)):
            with_retries(engine, "migrate", partial(_apply, steps))
        with_retries(engine, "migrate", _refresh)
        return [step.revision for step in _pending(engine, "head")]
    finally:
        engine.dispose()


def downgrade(url: str, revision: str) -> None:
    """Go back to `revision`. For a failed deployment: newer tables are dropped, with their rows."""

    def work(connection: Connection) -> None:
        lock(connection, tables_of(connection) + views_of(connection))
        drop_code(connection)
        command.downgrade(_config(connection), revision)
        _load_if_it_fits(connection)

    engine = _engine(url)
    try:
        with_retries(engine, "downgrade", work)
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
    """Report if the database at `url` has the newest tables, guards and views."""
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            return not _left(connection, "head") and loaded_digest(connection) == code_digest()
    finally:
        engine.dispose()


def phase_of(step: Script) -> Phase:
    """`pre` or `post`: the `phase` of the revision's module, `pre` by default; raises ConfigError."""
    phase: Phase = getattr(step.module, "phase", "pre")
    if phase not in ("pre", "post"):
        raise ConfigError(f"revision {step.revision}: phase must be pre or post, not {phase!r}")
    return phase


def _is_online(step: Script) -> bool:
    # A revision with `online = True` holds no lock that would delay workers.
    return bool(getattr(step.module, "online", False))


def _chosen(pending: Sequence[Script], phase: Phase) -> list[Script]:
    """The pending revisions of a phase; raises ConfigError when earlier ones would be skipped."""
    if phase == "all":
        return list(pending)
    last_pre = max((place for place, step in enumerate(pending) if phase_of(step) == "pre"), default=-1)
    before, after = list(pending[: last_pre + 1]), list(pending[last_pre + 1 :])
    if phase == "post":
        if before:
            raise ConfigError(
                f"phase: revision {before[-1].revision} comes first: `rollbook migrate --phase pre`, then replace "
                "the workers"
            )
        return after
    if early := [step.revision for step in before if phase_of(step) == "post"]:
        raise ConfigError(
            f"phase: {early[0]} of an earlier version was never applied, and old workers may run: finish that "
            "version's deployment (`rollbook migrate --phase post` with it), or stop all workers and migrate with "
            "--phase all"
        )
    return before


def _runs(steps: Sequence[Script]) -> list[list[Script]]:
    """Groups to apply in one transaction each: neighbours of one phase that lock in the same way."""
    return [list(run) for _, run in groupby(steps, key=lambda step: (phase_of(step), _is_online(step)))]


def _apply(steps: Sequence[Script], connection: Connection) -> None:
    _require_server(connection)
    here = {step.revision for step in _left(connection, steps[-1].revision)}
    if not here & {step.revision for step in steps}:
        return  # another process was faster
    if not _is_online(steps[0]):
        lock(connection, tables_of(connection) + views_of(connection))
        drop_code(connection)
    command.upgrade(_config(connection), steps[-1].revision)
    _load_if_it_fits(connection)


def _refresh(connection: Connection) -> None:
    _require_server(connection)
    _load_if_it_fits(connection)


def _load_if_it_fits(connection: Connection) -> None:
    # The code needs every `pre` revision; `post` ones only remove what it does not use.
    fits = _revision(connection) is not None and all(phase_of(step) == "post" for step in _left(connection, "head"))
    if fits and loaded_digest(connection) != code_digest():
        load_code(connection)


def _require_server(connection: Connection) -> None:
    version = connection.scalar(text("SELECT current_setting('server_version_num')::integer"))
    if version < OLDEST_SERVER * 10_000:
        raise ConfigError(
            f"ROLLBOOK_DATABASE_URL: the server is Postgres {version // 10_000}, "
            f"the ledger needs {OLDEST_SERVER} or newer"
        )


def _pending(engine: Engine, revision: str) -> list[Script]:
    with engine.connect() as connection:
        return _left(connection, revision)


def _left(connection: Connection, revision: str) -> list[Script]:
    """Revisions between the database's and `revision`, oldest first; none when it is that far already."""
    scripts = ScriptDirectory.from_config(_config(None))
    done = _revision(connection)
    applied = {step.revision for step in scripts.iterate_revisions(done, "base")} if done else set()
    return [
        step for step in reversed(list(scripts.iterate_revisions(revision, "base"))) if step.revision not in applied
    ]


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config(connection: Connection | None) -> Config:
    config = Config()
    # The parser behind these options interpolates: a `%` of a path is written twice.
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(map(str, VERSIONS)).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _engine(url: str) -> Engine:
    options = "-c lock_timeout=3s -c statement_timeout=600s -c client_min_messages=warning"
    return create_engine(url, connect_args={"options": options, "connect_timeout": 10})
