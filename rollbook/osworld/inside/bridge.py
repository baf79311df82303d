"""127.0.0.1 in a isolation without a network: each guest port is carried over a unix socket to the forwarder outside.

Runs in a process of its own, forked before anything heavy is imported. A connection that could not be carried is
counted: the evaluator may take it for a missing file, we must not.
"""

import asyncio
import os
import signal
from collections.abc import Mapping

CHUNK = 64 * 1024


class Bridge:
    """The bridge's process, seen from the evaluator's."""

    def __init__(self, routes: Mapping[int, str]) -> None:
        ready, self._tell_ready = os.pipe()
        self._failures, self._tell_failure = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _serve_forever(routes, self._tell_ready, self._tell_failure)
        os.close(self._tell_ready)
        os.close(self._tell_failure)
        os.set_blocking(self._failures, False)
        if os.read(ready, 1) != b"1":
            raise RuntimeError("the bridge to the guest did not start")
        os.close(ready)

    def failures(self) -> str:
        """Return the problems so far; empty when every connection was carried and the bridge still works."""
        try:
            lost = os.read(self._failures, 4096)
        except BlockingIOError:
            return ""
        return f"{len(lost)} connection(s) were not carried to the guest" if lost else "the bridge died"


def _serve_forever(routes: Mapping[int, str], tell_ready: int, tell_failure: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        asyncio.run(_serve(routes, tell_ready, tell_failure))
    except BaseException as error:
        print(f"bridge: {type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(code)


async def _serve(routes: Mapping[int, str], tell_ready: int, tell_failure: int) -> None:
    servers = []
    for port, path in routes.items():

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str = path) -> None:
            await _carry(reader, writer, path, tell_failure)

        servers.append(await asyncio.start_server(carry, "127.0.0.1", port, limit=CHUNK))
    os.write(tell_ready, b"1")
    os.close(tell_ready)
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, tell_failure: int) -> None:
    try:
        far_reader, far_writer = await asyncio.open_unix_connection(path, limit=CHUNK)
    except OSError as error:
        print(f"bridge: {path}: {error}", flush=True)
        os.write(tell_failure, b"x")
        writer.close()
        return
    try:
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
    finally:
        writer.close()
        far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (ConnectionError, OSError):
        writer.transport.abort()
