"""Migrations and metadata are one schema, and migrating loses nothing."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text

from rollbook.ledger import Examination, Ledger, Phase, migrate, schema, tables
from rollbook.ledger.records import TemporalServer
from tests.support.ledger import Kit, make_tasks, ref, rows
from tests.support.servers import PostgresServer

ROOT = Path(__file__).parents[3]

CATALOG = {
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               a.attgenerated, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum), a.attacl::text
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE n.nspname = 'public' AND c.relkind IN ('r', 'v') AND a.attnum > 0 AND NOT a.attisdropped
            AND c.relname <> 'alembic_version'
    """,
    "order of columns": """
        SELECT c.relname, string_agg(a.attname, ' ' ORDER BY a.attnum)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'public' AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
            AND c.relname <> 'alembic_version' GROUP BY c.relname
    """,
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), condeferrable FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND conrelid <> 0
            AND conrelid::regclass::text <> 'alembic_version'
    """,
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes"
    " WHERE schemaname = 'public' AND tablename <> 'alembic_version'",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), tgenabled FROM pg_trigger WHERE NOT tgisinternal
    """,
    "functions": """
        SELECT oid::regprocedure::text, pg_get_functiondef(oid), obj_description(oid) FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace
    """,
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
    "tables": """
        SELECT relname, obj_description(oid), relacl::text FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') AND relname <> 'alembic_version'
    """,
}


def catalog(connection: Connection) -> dict[str, list[Any]]:
    """Everything that Postgres knows of the schema."""
    return {
        name: sorted((tuple(row) for row in connection.execute(text(query))), key=repr)
        for name, query in CATALOG.items()
    }


@pytest.fixture
def engine(database_url: str) -> Any:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


async def test_migrations_build_what_the_metadata_says(pg_server: PostgresServer, engine: Engine) -> None:
    migrate.upgrade(engine.url.render_as_string(hide_password=False))
    url = await pg_server.create_database("from_metadata")
    other = create_engine(url)
    with other.begin() as connection:
        tables.metadata.create_all(connection)
        schema.load_code(connection)
    with engine.connect() as migrated, other.connect() as declared:
        left, right = catalog(migrated), catalog(declared)
        assert compare_metadata(MigrationContext.configure(migrated), tables.metadata) == []
    other.dispose()
    await pg_server.drop_database("from_metadata")
    for name in CATALOG:
        assert left[name] == right[name], name
        assert left[name], name


async def test_upgrade_is_idempotent_and_reloads_changed_code(database_url: str, engine: Engine) -> None:
    assert migrate.current(database_url) is None
    migrate.upgrade(database_url)
    assert migrate.is_current(database_url)
    with engine.connect() as connection:
        before = catalog(connection)
    migrate.upgrade(database_url)
    with engine.begin() as connection:
        connection.execute(text("DROP VIEW scoreboard"))
        connection.execute(
            text("""CREATE OR REPLACE FUNCTION schema_code() RETURNS jsonb LANGUAGE sql IMMUTABLE
                    RETURN '{"digest": "old", "views": ["rollcall", "scoreboard"], "seals": []}'::jsonb""")
        )
    assert not migrate.is_current(database_url)
    with pytest.raises(Exception, match="already exists"):
        migrate.upgrade(database_url)  # the note lists fewer views than there are: nothing is lost silently
    with engine.begin() as connection:
        schema.drop_code(connection)
        for view in (
            "batch_record",
            "phases",
            "episode_timeline",
            "excluded_tasks",
            "live_sandboxes",
            "model_usage",
            "pass_k",
            "sample_spread",
            "training_rows",
            "under_pressure",
        ):
            connection.execute(text(f"DROP VIEW {view}"))
        connection.execute(text("DROP VIEW broken_desktops"))
        connection.execute(text("DROP VIEW rollout_result, admission_history, current_admission"))
    migrate.upgrade(database_url)
    with engine.connect() as connection:
        assert catalog(connection) == before


async def test_processes_that_migrate_at_once_wait_for_each_other(database_url: str) -> None:
    await asyncio.gather(*(asyncio.to_thread(migrate.upgrade, database_url) for _ in range(4)))
    assert migrate.is_current(database_url)


async def test_a_filled_database_goes_down_and_up(database_url: str, engine: Engine) -> None:
    migrate.upgrade(database_url)
    head = migrate.current(database_url)
    ledger = Ledger.connect(database_url)
    kit = Kit(ledger, tasks=make_tasks(4))
    await ledger.register_task_set("tasks", kit.tasks)
    keys = await kit.keys()
    for key in keys[:3]:
        await kit.run(key, steps=0)
    before = await rows(ledger, "SELECT * FROM rollout_result ORDER BY 1")
    with engine.connect() as connection:
        schema = catalog(connection)
    await asyncio.to_thread(migrate.downgrade, database_url, "0003_attempts")
    assert await asyncio.to_thread(migrate.current, database_url) == "0003_attempts"
    assert len(await rows(ledger, "SELECT * FROM outcome")) == 3
    await asyncio.to_thread(migrate.upgrade, database_url)
    assert await asyncio.to_thread(migrate.current, database_url) == head
    assert await rows(ledger, "SELECT * FROM rollout_result ORDER BY 1") == before
    with engine.connect() as connection:
        assert catalog(connection) == schema
    await kit.run(keys[3])
    await asyncio.to_thread(migrate.downgrade, database_url, "base")
    assert await rows(ledger, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [
        {"tablename": "alembic_version"}
    ]
    await asyncio.to_thread(migrate.upgrade, database_url)
    assert migrate.is_current(database_url)
    await ledger.aclose()


async def everything(ledger: Ledger) -> dict[str, list[Any]]:
    """Every row of every table that there is, by name of its columns."""
    there = {row["tablename"] for row in await rows(ledger, "SELECT tablename FROM pg_tables")}
    return {
        table.name: sorted(
            (dict(row) for row in await rows(ledger, f"SELECT * FROM {table.name}")), key=lambda row: repr(row)
        )
        for table in tables.metadata.sorted_tables
        if table.name in there
    }


def of_columns(found: dict[str, list[Any]], of: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The rows of the tables in `of`, with the columns that these have."""
    return {name: [{column: row[column] for column in of[name][0]} for row in found[name]] for name in of}


def without_generated(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The rows without their generated columns, which follow from the others."""
    generated = {
        table.name: {column.name for column in table.c if column.computed is not None}
        for table in tables.metadata.sorted_tables
    }
    return {
        name: [{column: value for column, value in row.items() if column not in generated[name]} for row in rows]
        for name, rows in found.items()
    }


async def test_the_previous_revision_loses_nothing_either_way(database_url: str, engine: Engine) -> None:
    """A database of the previous revision, filled with every kind of row, comes up to this one and goes back whole."""
    migrate.upgrade(database_url)
    ledger = Ledger.connect(database_url)
    kit = Kit(ledger, tasks=make_tasks(6))
    await ledger.register_task_set("tasks", kit.tasks)
    await ledger.register_script("script", {"schema_version": 1, "tasks": {}, "default": {"steps": []}})
    identity = {"sampling_event_id": "event", "source_group_ids": {task.task_id: task.task_id for task in kit.tasks}}
    keys = await kit.keys(identity=identity)
    for key in keys[:3]:
        await kit.run(key)
    await kit.ledger.request_rerun(kit.batch_id, keys[:1], reason="again", requested_by="ann", supersede=True)
    await kit.claim(keys[3])
    lease = {"deployment_id": "test", "provider": "null", "lease_s": 60.0}
    await kit.ledger.sandbox_intent(ref(keys[3], 1), "run-1", sandbox_key="s-1", **lease)  # type: ignore[arg-type]
    await kit.ledger.commit_examination(ref(keys[3], 1), "run-1", Examination())
    setup = Phase(phase="setup", token="t", ok=True, started_at=datetime.now(UTC))
    await kit.ledger.record_phase(ref(keys[3], 1), "run-1", setup)
    await kit.ledger.record_image("sha256:1", "docker", "image@1", '{"programs": ["gedit"]}')
    await kit.ledger.count_missing(keys[3], "run-1")
    server = TemporalServer(namespace_id="n", cluster_id="c")
    await ledger.adopt_temporal_server("test", "default", server, reason="the first", adopted_by="ann")
    less = Kit(ledger, batch_id="less", tasks=kit.tasks)
    await less.register(unrunnable={"task-000": "no chrome"}, tasks={"on_unrunnable": "exclude"})
    whole = Kit(ledger, batch_id="whole", tasks=kit.tasks)
    for key in await whole.keys():
        await whole.run(key)
    assert await ledger.batch_is_whole(whole.batch_id)
    before = await everything(ledger)
    assert all(before.values()), {name for name, found in before.items() if not found}
    report = await ledger.audit(kit.batch_id)

    await asyncio.to_thread(migrate.downgrade, database_url, previous())
    assert await asyncio.to_thread(migrate.current, database_url) == previous()
    below = await everything(ledger)
    kept = of_columns(before, below)
    assert without_generated(below) == without_generated(kept), "the downgrade loses nothing that was there before"
    await asyncio.to_thread(migrate.upgrade, database_url)
    after = await everything(ledger)
    assert of_columns(after, below) == kept, "the upgrade loses nothing"
    assert not any(after[name] for name in after.keys() - below.keys()), "new tables are empty"
    assert await ledger.audit(kit.batch_id) == report, "seals, digests and the plan still fit"
    await kit.run(keys[4])
    await ledger.aclose()


def previous() -> str:
    """The revision before the newest."""
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    newest = script.get_revision("head")
    assert newest is not None
    assert isinstance(newest.down_revision, str)
    return newest.down_revision


def test_every_revision_gives_its_reason() -> None:
    for path in (ROOT / "migrations" / "versions").glob("0*.py"):
        assert len(path.read_text().split('"""')[1]) > 40, path.name


def test_importing_the_models_does_not_bring_sqlalchemy() -> None:
    """Workflows import models only; SQLAlchemy in their sandbox costs a second of CPU per workflow."""
    code = "import sys, models.batch, models.episode; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
