"""A guest server on a real loopback socket, with failures on demand.

Good for how connections end: refused, reset, half replies, silence, WebSockets. It cannot prove that a desktop does
anything, nor that a real guest fails in these ways: tests with the desktop image do that, and
tests/integration/test_guest_contract.py compares its words with those of the real server.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote_plus

import aiohttp
from aiohttp import web

from rollbook.guest.http import KNOWN_FILE

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class HttpGuest:
    """Listens while entered. `routes` maps a path to a handler, bytes, or a JSON value; `seen` holds what came.

    An empty `nonce` stands for a stock OSWorld guest, which does not know the question.
    """

    nonce: str = "nonce-of-the-double"
    routes: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self) -> None:
        """Break every connection and stop listening."""
        for connection in list(self._runner.server.connections) if self._runner.server else []:
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()

    def paths(self) -> list[str]:
        """Paths that were asked for, in order, the liveness questions left out."""
        return [path for _, path, _, _ in self.seen if path not in ("/nonce", "/terminal")]

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        upgrade = request.headers.get("Upgrade", "").lower() == "websocket"
        body = b"" if upgrade else await request.content.read()
        self.seen.append((request.method, request.raw_path, dict(request.headers), body))
        if request.path == "/nonce" and self.nonce:
            return web.json_response({"nonce": self.nonce})
        answer = self.routes.get(request.path)
        if answer is None:
            known = {"/terminal": {"output": None, "status": "success"}}.get(request.path)
            return web.json_response(known if known else error_body("not found"), status=200 if known else 404)
        if callable(answer):
            handled: web.StreamResponse = await answer(request)
            return handled
        return web.Response(body=answer) if isinstance(answer, bytes) else web.json_response(answer)


def command(output: str, error: str = "", returncode: int = 0, out_of_memory: bool = False) -> dict[str, Any]:
    """The answer of `/execute` to a command."""
    return {
        "status": "success",
        "output": output,
        "error": error,
        "returncode": returncode,
        "out_of_memory": out_of_memory,
    }


def error_body(message: str) -> dict[str, str]:
    """The body of an error."""
    return {"status": "error", "message": message, "error": message}


def timed_out(limit_s: float = 120.0) -> Handler:
    """The answer of `/execute` when it has killed the command at its limit."""
    return status(500, error_body(f"the command was killed: it timed out after {limit_s:g} seconds"))


def no_program(path: str) -> Handler:
    """The answer of `/execute` to a program that does not exist."""
    return status(500, error_body(f"[Errno 2] No such file or directory: '{path}'"))


def sound_but(bodies: HttpGuest, fault: Handler) -> Handler:
    """A guest that fails as `fault` does at what it is asked for, and can run `true` and read a known file."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        body = bodies.seen[-1][3]
        if KNOWN_FILE in unquote_plus(body.decode()):
            return web.Response(body=b"desktop\n")
        if request.path != "/file" and json.loads(body).get("command") == ["true"]:
            return web.json_response(command(""))
        return await fault(request)

    return answer


async def endless(request: web.BaseRequest) -> web.StreamResponse:
    """Send as long as the client reads."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(bytes(65536))


def status(code: int, body: Any = None) -> Handler:
    """Answer with this HTTP status."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=code, text=json.dumps(body or error_body("on demand")))

    return answer


async def reset(request: web.BaseRequest) -> web.StreamResponse:
    """Break the connection instead of answering."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half(request: web.BaseRequest) -> web.StreamResponse:
    """Promise 1,000 bytes, send ten, break the connection."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"0123456789")
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


async def silence(_: web.BaseRequest) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(3600)
    return web.Response()


async def echo_socket(request: web.BaseRequest) -> web.StreamResponse:
    """A WebSocket that repeats what it hears; `die` breaks the connection, `bye` closes it in order."""
    socket = web.WebSocketResponse(protocols=["cdp"])
    await socket.prepare(request)
    async for message in socket:
        if message.type is aiohttp.WSMsgType.TEXT and message.data == "die":
            assert request.transport is not None
            request.transport.abort()
        elif message.type is aiohttp.WSMsgType.TEXT and message.data == "bye":
            await socket.close()
        elif message.type is aiohttp.WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    return socket


async def cdp_version(_: web.BaseRequest) -> web.StreamResponse:
    """A browser's description of itself; the host in the URL is one that only the browser understands."""
    return web.json_response({"Browser": "Double/1", "webSocketDebuggerUrl": "ws://localhost/devtools/browser/1"})


async def cdp_browser(request: web.BaseRequest) -> web.StreamResponse:
    """A browser without tabs: it agrees to every command of the debugger protocol."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    about = {
        "product": "Chrome/150.0.0.0",
        "userAgent": "Double",
        "protocolVersion": "1.3",
        "revision": "",
        "jsVersion": "",
    }
    async for message in socket:
        call = json.loads(message.data)
        result: dict[str, Any] = (
            about if call["method"] == "Browser.getVersion" else {"browserContextIds": [], "targetInfos": []}
        )
        await socket.send_str(json.dumps({"id": call["id"], "result": result}))
    return socket
