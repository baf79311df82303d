"""A ledger behind another server's defaults, and behind a connection pooler."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from rollbook.errors import ConfigError
from rollbook.ledger import Ledger


async def test_times_are_read_whatever_the_date_style(ledger_url: str, ledger: Ledger) -> None:
    name = make_url(ledger_url).database
    async with ledger.engine.begin() as connection:
        await connection.execute(text(f"ALTER DATABASE \"{name}\" SET datestyle = 'SQL, DMY'"))
    other = Ledger.connect(ledger_url)
    try:
        async with other.engine.connect() as connection:
            seen = await connection.scalar(text("SELECT timestamptz '2026-03-04 05:06:07+00'"))
        assert seen == datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    finally:
        await other.aclose()
        async with ledger.engine.begin() as connection:
            await connection.execute(text(f'ALTER DATABASE "{name}" RESET datestyle'))


@asynccontextmanager
async def pooler(socket: Path) -> AsyncIterator[int]:
    """Pass connections on without the startup parameter `options`, as PgBouncer can be set to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(4))
        message = await reader.readexactly(length - 4)
        if len(message) == 4:  # a request for encryption
            writer.write(b"N")
            length = int.from_bytes(await reader.readexactly(4))
            message = await reader.readexactly(length - 4)
        words = message[4:].split(b"\0")
        pairs = [pair for pair in zip(words[::2], words[1::2], strict=False) if pair[0] not in (b"", b"options")]
        body = message[:4] + b"".join(name + b"\0" + value + b"\0" for name, value in pairs) + b"\0"
        to_server = await asyncio.open_unix_connection(socket)
        to_server[1].write((len(body) + 4).to_bytes(4) + body)
        try:
            await asyncio.gather(_copy(reader, to_server[1]), _copy(to_server[0], writer))
        finally:
            to_server[1].close()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _socket_in(directory: Path) -> Path:
    (socket,) = directory.glob(".s.PGSQL.*[0-9]")
    return socket


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_a_pooler_that_drops_the_sessions_settings_is_refused_in_a_line(ledger_url: str) -> None:
    url = make_url(ledger_url)
    async with pooler(_socket_in(Path(str(url.query["host"])))) as port:
        through = Ledger.connect(url.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False))
        with pytest.raises(ConfigError, match="ROLLBOOK_DATABASE_URL: a connection pooler drops the settings"):
            async with through.engine.connect():
                pass
        await through.aclose()
