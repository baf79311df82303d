"""A connection to the real Docker engine that can be shut: its users find no engine, the desktops keep running."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")


class EngineGate:
    """A unix socket that hands everything on to the engine's own, while it is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def docker_host(self) -> str:
        """For DOCKER_HOST."""
        return f"unix://{self._path}"

    async def open(self) -> None:
        """Let everybody through; an open gate stays as it is."""
        if self._server is not None:
            return
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def shut(self) -> None:
        """Refuse new connections and cut those that are under way."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._path.unlink(missing_ok=True)
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_engine = await asyncio.open_unix_connection(ENGINE)
        pairs = ((reader, to_engine[1]), (to_engine[0], writer))
        self._writers |= {writer, to_engine[1]}
        try:
            await asyncio.gather(*(self._pass_on(*pair) for pair in pairs))
        finally:
            for one in (writer, to_engine[1]):
                one.close()
                self._writers.discard(one)

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
