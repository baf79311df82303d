"""Migrating while workers write: no worker is aborted, and transactions that block a migration are named."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

from rollbook.errors import ConfigError, LedgerError
from rollbook.ledger import Ledger, migrate, schema
from rollbook.ledger.sql import SQL
from tests.support.hostile import attack
from tests.support.ledger import Kit, make_tasks, rows
from tests.support.waiting import until

WRITERS = 6

PRE = """'''A column and a check that old workers can live with.'''
from alembic import op
from migrations.support import add_check
revision, down_revision, branch_labels, depends_on = "9001_colour", {head!r}, None, None
phase = "pre"
def upgrade():
    op.execute("ALTER TABLE rollout ADD COLUMN colour text")
    op.execute("ALTER TABLE attempt ADD COLUMN colour text NOT NULL DEFAULT 'red'")
    add_check("attempt", "attempt_colour", "colour <> ''")
def downgrade():
    op.execute("ALTER TABLE rollout DROP COLUMN colour")
    op.execute("ALTER TABLE attempt DROP COLUMN colour")
"""
POST = """'''The check of the revision before, for the rows that are there.'''
from migrations.support import validate_check
revision, down_revision, branch_labels, depends_on = "9002_colour_checked", "9001_colour", None, None
phase, online = "post", True
def upgrade():
    validate_check("attempt", "attempt_colour")
def downgrade():
    pass
"""
NEXT = """'''What the next version adds.'''
from alembic import op
revision, down_revision, branch_labels, depends_on = "9003_shape", "9002_colour_checked", None, None
def upgrade():
    op.execute("ALTER TABLE rollout ADD COLUMN shape text")
def downgrade():
    op.execute("ALTER TABLE rollout DROP COLUMN shape")
"""


@pytest.fixture
async def kit(database_url: str) -> AsyncIterator[Kit]:
    await asyncio.to_thread(migrate.upgrade, database_url)
    ledger = Ledger.connect(database_url)
    kit = Kit(ledger, tasks=make_tasks(6))
    await ledger.register_task_set("tasks", kit.tasks)
    yield kit
    await ledger.aclose()


@pytest.fixture
def sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scripts of another version, to be edited."""
    copy = tmp_path / "sql"
    shutil.copytree(SQL, copy)
    monkeypatch.setattr(schema, "SQL", copy)
    return copy


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> Path:
    """A place for further revisions."""
    monkeypatch.setattr(migrate, "VERSIONS", [*migrate.VERSIONS, tmp_path])
    return tmp_path


def add(versions: Path, name: str, source: str, head: str | None = None) -> None:
    (versions / f"{name}.py").write_text(source.format(head=head) if head else source)


def edit(sql: Path, name: str, old: str, new: str) -> None:
    source = (sql / name).read_text()
    assert source.count(old) >= 1, f"{name} has no {old!r} any more: mend this test"
    (sql / name).write_text(source.replace(old, new, 1))


class Traffic:
    """Writers that play episodes one after the other, and readers of views; the first error ends them."""

    def __init__(self, kit: Kit, keys: list[str]) -> None:
        self._kit = kit
        self._keys = iter(keys)
        self._stopped = False
        self.played = 0

    async def write(self) -> None:
        for key in self._keys:
            if self._stopped:
                return
            await self._kit.run(key, steps=1)
            self.played += 1
        raise AssertionError("the writers ran out of rollouts")

    async def read(self) -> None:
        while not self._stopped:
            await self._kit.ledger.counts(self._kit.batch_id)
            await rows(self._kit.ledger, "SELECT * FROM scoreboard WHERE batch_id = :b", b=self._kit.batch_id)
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.write()) for _ in range(WRITERS)]
        tasks += [asyncio.create_task(self.read()) for _ in range(2)]
        try:
            await self.further(tasks)
            yield
            await self.further(tasks)
        finally:
            self._stopped = True
            await asyncio.gather(*tasks)

    async def further(self, tasks: list["asyncio.Task[None]"]) -> None:
        """Wait until more episodes have ended: before, between and after migrations."""
        wanted = self.played + WRITERS

        async def enough() -> bool:
            return self.played >= wanted or any(task.done() for task in tasks)

        await until("episodes end", enough, 60)


async def test_nobody_notices_that_code_is_replaced(kit: Kit, database_url: str, sql: Path) -> None:
    traffic = Traffic(kit, await kit.keys(samples=150))
    async with traffic.flowing():
        edit(sql, "guards.sql", "BEGIN\n", "BEGIN\n    -- another body\n")
        await asyncio.to_thread(migrate.upgrade, database_url)
        edit(sql, "guards.sql", "BEFORE UPDATE ON rollout", "BEFORE INSERT OR UPDATE OF state ON rollout")
        edit(sql, "guards.sql", "AFTER INSERT ON outcome", "AFTER INSERT OR UPDATE ON outcome")
        edit(sql, "views.sql", "CREATE VIEW scoreboard AS", "CREATE VIEW scoreboard AS /* another */")
        await asyncio.to_thread(migrate.upgrade, database_url)
    assert migrate.is_current(database_url)
    (changed,) = await rows(
        kit.ledger, "SELECT pg_get_triggerdef(oid) AS sql FROM pg_trigger WHERE tgname = 'outcome_whole'"
    )
    assert "AFTER INSERT OR UPDATE ON" in changed["sql"]
    await kit.clean()


async def test_nobody_notices_a_revision(kit: Kit, database_url: str, versions: Path) -> None:
    add(versions, "9001_colour", PRE, migrate.current(database_url))
    add(versions, "9002_colour_checked", POST)
    traffic = Traffic(kit, await kit.keys(samples=150))
    async with traffic.flowing():
        left = await asyncio.to_thread(migrate.upgrade, database_url, phase="pre")
        assert left == ["9002_colour_checked"]
        assert not await validated(kit)
        assert await asyncio.to_thread(migrate.upgrade, database_url, phase="post") == []
        assert await validated(kit)
    assert migrate.is_current(database_url)
    await kit.clean()


async def validated(kit: Kit) -> bool:
    query = "SELECT convalidated FROM pg_constraint WHERE conname = 'attempt_colour'"
    return bool((await rows(kit.ledger, query))[0]["convalidated"])


@contextlib.contextmanager
def open_writer(database_url: str, key: str) -> Iterator[Connection]:
    """A transaction that holds a row and does nothing."""
    engine = create_engine(database_url, connect_args={"application_name": "sleepy"})
    with engine.connect() as connection:
        connection.execute(text("SELECT FROM rollout WHERE rollout_key = :k FOR NO KEY UPDATE"), {"k": key})
        yield connection
        connection.rollback()
    engine.dispose()


async def test_bodies_and_views_are_replaced_beside_an_open_writer(kit: Kit, database_url: str, sql: Path) -> None:
    keys = await kit.keys()
    edit(sql, "guards.sql", "BEGIN\n", "BEGIN\n    -- another body\n")
    edit(
        sql,
        "row_digests.sql",
        "seal_row() RETURNS trigger LANGUAGE plpgsql AS $$\n",
        "seal_row() RETURNS trigger AS $$\n",
    )
    edit(sql, "row_digests.sql", "    RETURN NEW;\nEND $$;", "    RETURN NEW;\nEND $$ LANGUAGE plpgsql;")
    edit(sql, "views.sql", "CREATE VIEW scoreboard AS", "CREATE VIEW scoreboard AS /* another */")
    with open_writer(database_url, keys[0]):
        await asyncio.to_thread(migrate.upgrade, database_url)
        assert migrate.is_current(database_url)
    await kit.run(keys[0])


async def test_an_open_writer_holds_up_a_revision_and_nobody_else(
    kit: Kit, database_url: str, versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "TRIES", 3)
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_S", 1)
    head = migrate.current(database_url)
    add(versions, "9001_colour", PRE, head)
    keys = await kit.keys(samples=100)
    traffic = Traffic(kit, keys[1:])
    with open_writer(database_url, keys[0]) as sleepy:
        async with traffic.flowing():
            with pytest.raises(LedgerError, match=r"nothing was changed. Open transactions: pid .*sleepy.*open for"):
                await asyncio.to_thread(migrate.upgrade, database_url)
        assert migrate.current(database_url) == head
        assert await rows(kit.ledger, "SELECT * FROM scoreboard"), "views are as they were"
        sleepy.rollback()
        assert await asyncio.to_thread(migrate.upgrade, database_url) == []
    assert migrate.current(database_url) == "9001_colour"
    await kit.clean()


async def test_only_triggers_that_differ_are_made(kit: Kit, database_url: str, sql: Path) -> None:
    before = await triggers(kit)
    async with kit.ledger.engine.begin() as conn:
        await conn.execute(text("DROP TRIGGER attempt_guard ON attempt"))
        await conn.execute(text("ALTER TABLE outcome DISABLE TRIGGER outcome_guard"))
        await conn.execute(text("CREATE TRIGGER theirs BEFORE INSERT ON task EXECUTE FUNCTION refuse_change()"))
    edit(sql, "guards.sql", "CREATE OR REPLACE TRIGGER batch_kept BEFORE DELETE OR TRUNCATE ON batch", "-- none --")
    edit(sql, "guards.sql", "-- none -- EXECUTE FUNCTION refuse_change();", "")
    await asyncio.to_thread(migrate.upgrade, database_url)
    after = await triggers(kit)
    assert before.keys() - after.keys() == {"batch_kept"}, "taken out of guards.sql"
    assert after.keys() - before.keys() == {"theirs"}, "a trigger of somebody else is none of ours"
    made_anew = {name for name in before.keys() & after.keys() if before[name][1] != after[name][1]}
    assert made_anew == {"attempt_guard", "outcome_guard"}
    assert all(before[name][0] == after[name][0] for name in made_anew)


async def triggers(kit: Kit) -> dict[str, Any]:
    """Definition and object id of every trigger."""
    query = (
        "SELECT tgname, pg_get_triggerdef(oid) || tgenabled::text AS sql, oid FROM pg_trigger WHERE NOT tgisinternal"
    )
    return {row["tgname"]: (row["sql"], row["oid"]) for row in await rows(kit.ledger, query)}


async def test_phases_keep_their_order(kit: Kit, database_url: str, versions: Path) -> None:
    add(versions, "9001_colour", PRE, migrate.current(database_url))
    add(versions, "9002_colour_checked", POST)
    with pytest.raises(ConfigError, match="9001_colour comes first: `rollbook migrate --phase pre`"):
        migrate.upgrade(database_url, phase="post")
    assert migrate.upgrade(database_url, phase="pre") == ["9002_colour_checked"]
    assert migrate.upgrade(database_url, phase="pre") == ["9002_colour_checked"], "repeating it changes nothing"
    assert not migrate.is_current(database_url)
    await kit.run((await kit.keys())[0])  # views and guards are there for old and new workers
    add(versions, "9003_shape", NEXT)
    with pytest.raises(ConfigError, match="9002_colour_checked of an earlier version was never applied"):
        migrate.upgrade(database_url, phase="pre")
    assert migrate.upgrade(database_url) == []
    assert migrate.is_current(database_url)
    assert migrate.upgrade(database_url, phase="post") == []


async def test_a_phase_is_one_of_two(kit: Kit, database_url: str, versions: Path) -> None:
    add(versions, "9001_odd", PRE.replace('"pre"', '"soon"'), migrate.current(database_url))
    with pytest.raises(ConfigError, match="9001_colour: phase must be pre or post, not 'soon'"):
        migrate.upgrade(database_url, phase="pre")


async def test_no_role_of_the_ledger_holds_up_a_migration(
    kit: Kit, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that every login may take decides nothing, and the lock that does is not theirs."""
    monkeypatch.setattr(schema, "OTHERS_S", 1)
    monkeypatch.setattr(schema, "TRIES", 1)
    worker = Ledger.connect(database_url, role="rollbook_worker")
    async with worker.engine.begin() as connection:
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({schema._MIGRATIONS})"))
        await asyncio.to_thread(migrate.upgrade, database_url)
    for mode in ("ROW EXCLUSIVE", "SHARE ROW EXCLUSIVE"):
        assert "permission denied" in await attack(worker, f"LOCK TABLE alembic_version IN {mode} MODE")
    await worker.aclose()
    async with kit.ledger.engine.begin() as connection:  # another migration
        await connection.execute(text("LOCK TABLE alembic_version IN SHARE ROW EXCLUSIVE MODE"))
        with pytest.raises(LedgerError, match="migrate: tables of the ledger stayed in use"):
            await asyncio.to_thread(migrate.upgrade, database_url)
