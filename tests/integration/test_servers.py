"""The session's servers work, and survive kill -9 on the same data and address."""

import os

import psycopg
import pytest
from temporalio.client import Client

from rollbook.stack import postgres
from tests.support.servers import PostgresServer, new_postgres, new_temporal, scratch_directory


def _plain(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")


async def test_database_is_fresh(database_url: str, pg_server: PostgresServer) -> None:
    async with await psycopg.AsyncConnection.connect(_plain(database_url)) as connection:
        row = await (await connection.execute("SELECT count(*) FROM pg_stat_user_tables")).fetchone()
    assert row == (0,)


async def test_temporal_has_search_attributes(temporal_client: Client) -> None:
    assert [w async for w in temporal_client.list_workflows('RolloutBatch = "x" AND RolloutScore > 0.5')] == []


async def test_postgres_keeps_committed_rows_over_kill9() -> None:
    with scratch_directory() as directory:
        server = new_postgres(directory)
        await server.start()
        url = _plain(await server.create_database("rollbook"))
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute("CREATE TABLE kept (n int)")
            await connection.execute("INSERT INTO kept VALUES (7)")
        await server.kill9()
        with pytest.raises(psycopg.OperationalError):
            await psycopg.AsyncConnection.connect(url)
        await server.start()
        async with await psycopg.AsyncConnection.connect(url) as connection:
            assert await (await connection.execute("SELECT n FROM kept")).fetchall() == [(7,)]
        await server.stop()


async def test_temporal_keeps_workflows_over_kill9() -> None:
    with scratch_directory() as directory:
        server = new_temporal(directory)
        await server.start()
        client = await Client.connect(server.address)
        await client.start_workflow("Nobody", id="kept", task_queue="nobody")
        await server.kill9()
        await server.start()
        again = await Client.connect(server.address)
        description = await again.get_workflow_handle("kept").describe()
        assert description.status is not None
        assert description.status.name == "RUNNING"
        await server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")
async def test_a_package_in_a_private_home_is_copied_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_others_may_read", lambda _: False)
    with scratch_directory() as directory:
        server = new_postgres(directory)
        await server.start()
        assert server.command().argv[0].startswith(str(server.directory))
        await server.create_database("rollbook")
        await server.stop()
