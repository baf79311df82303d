"""`rollbook sql`: a reader's session, in our own runner and in the real psql."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import make_url, text

from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.stack.postgres import binaries
from tests.support.ledger import Kit, rows

UNDO = "SET default_transaction_read_only = off"
WRITE = "DELETE FROM sighting"
COUNT = "SELECT count(*) AS planned FROM rollout_result"


class Said(NamedTuple):
    code: int
    out: str
    err: str


Ask = Callable[..., Awaitable[Said]]


@pytest.fixture
def ask(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Ask one query in our own runner, by the login of the given URL (the owner's by default)."""
    monkeypatch.setenv("ROLLBOOK_STATE_DIR", str(tmp_path))

    async def asked(*arguments: str, url: str = ledger_url) -> Said:
        monkeypatch.setenv("ROLLBOOK_DATABASE_URL", url)
        code = await asyncio.to_thread(main.run, ["sql", "--json", *arguments])
        shown = capsys.readouterr()
        return Said(code, shown.out, shown.err)

    return asked


async def psql(ledger_url: str, tmp_path: Path, *arguments: str) -> Said:
    """The command as a process of its own, which becomes psql."""
    environment = {
        **os.environ,
        "ROLLBOOK_DATABASE_URL": ledger_url,
        "ROLLBOOK_STATE_DIR": str(tmp_path),
        "PATH": f"{binaries(tmp_path, None)}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "rollbook.cli.main", "sql", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
async def sighted(kit: Kit) -> str:
    """A row that can be deleted: its key."""
    key = (await kit.keys())[0]
    await kit.ledger.count_missing(key, "run-1")
    return key


@pytest.fixture
async def login(ledger: Ledger) -> AsyncIterator[str]:
    """A login that may read and delete, and is neither a reader nor a superuser; the URL by which it connects."""
    async with ledger.engine.begin() as conn:
        await conn.execute(text("DROP ROLE IF EXISTS plain_login"))
        await conn.execute(text("CREATE ROLE plain_login LOGIN"))
        await conn.execute(text("GRANT rollbook_worker TO plain_login"))
        await conn.execute(text("GRANT DELETE ON sighting TO plain_login"))
    yield ledger.engine.url.set(username="plain_login").render_as_string(hide_password=False)
    async with ledger.engine.begin() as conn:
        await conn.execute(text("DROP OWNED BY plain_login"))
        await conn.execute(text("DROP ROLE plain_login"))


async def left(ledger: Ledger, key: str) -> int:
    return len(await rows(ledger, "SELECT FROM sighting WHERE rollout_key = :key", key=key))


async def test_the_views_are_read(ask: Ask, sighted: str) -> None:
    said = await ask("-c", COUNT)
    assert said.code == 0, said.err
    assert "planned" in said.out
    assert said.err == ""


async def test_nothing_is_written_after_the_setting_is_undone(ask: Ask, sighted: str, ledger: Ledger) -> None:
    """The login is a superuser; the session is not."""
    refused = await ask("-c", WRITE)
    assert refused.code != 0
    undone = await ask("-c", f"{UNDO}; COMMIT; {WRITE}; COMMIT")
    assert undone.code != 0
    assert "permission denied for table sighting" in undone.err
    reset = await ask("-c", f"{UNDO}; RESET ROLE; COMMIT; {WRITE}; COMMIT")
    assert "permission denied for table sighting" in reset.err, "the session began as the reader"
    assert await left(ledger, sighted) == 1


async def test_psql_begins_as_the_reader(ledger_url: str, tmp_path: Path, sighted: str, ledger: Ledger) -> None:
    said = await psql(ledger_url, tmp_path, "-c", f"SELECT 'as ' || current_user AS me; {UNDO}; RESET ROLE; {COUNT}")
    assert said.code == 0, said.err
    assert "as rollbook_reader" in said.out
    refused = await psql(ledger_url, tmp_path, "-c", f"{UNDO}; COMMIT; {WRITE}; COMMIT")
    assert refused.code != 0
    assert "permission denied for table sighting" in refused.err
    assert await left(ledger, sighted) == 1


async def test_tables_are_read_on_request(ask: Ask, sighted: str, ledger: Ledger) -> None:
    hidden = await ask("-c", "SELECT seen FROM sighting")
    assert hidden.code != 0
    assert "permission denied for table sighting" in hidden.err
    shown = await ask("--tables", "-c", "SELECT seen FROM sighting")
    assert shown.code == 0, shown.err
    assert "seen" in shown.out
    refused = await ask("--tables", "-c", WRITE)
    assert "read-only transaction" in refused.err
    assert await left(ledger, sighted) == 1


async def test_a_login_that_is_no_reader_is_told_so(ask: Ask, login: str, sighted: str, ledger: Ledger) -> None:
    said = await ask("-c", "SELECT seen FROM sighting", url=login)
    assert said.code == 0, said.err
    assert "not as rollbook_reader" in said.err
    assert "GRANT rollbook_reader TO plain_login" in said.err
    refused = await ask("-c", WRITE, url=login)
    assert "read-only transaction" in refused.err
    async with ledger.engine.begin() as conn:
        await conn.execute(text("GRANT rollbook_reader TO plain_login"))
    granted = await ask("-c", COUNT, url=login)
    assert (granted.code, granted.err) == (0, "")
    assert "permission denied" in (await ask("-c", f"{UNDO}; COMMIT; {WRITE}; COMMIT", url=login)).err
    assert await left(ledger, sighted) == 1


async def test_a_server_that_does_not_answer(ask: Ask, ledger_url: str) -> None:
    nowhere = make_url(ledger_url).set(database="nobodys").render_as_string(hide_password=False)
    said = await ask("-c", COUNT, url=nowhere)
    assert said.code != 0
    assert "the ledger does not answer" in said.err
