"""The recording forwarder: setup and evaluation reach a guest through nothing else.

One loopback listener per guest port, plain HTTP and WebSocket in, HTTP(S) out. It adds what a gateway needs (path
prefix, route headers), rewrites Host and WebSocket URLs for Chromium's debugger, ignores proxy variables, and records
how every exchange ended. A guest that cannot be reached is answered with 502; one that dies in the middle of a reply
breaks the client's connection, so that no half reply passes for a whole one. A guest never leads its client elsewhere:
redirects and listings with foreign addresses become 502.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import WSMsgType, web

from rollbook.guest.exchanges import (
    PATH_LIMIT,
    Exchange,
    ExchangeLog,
    Outcome,
    Redirected,
    answered,
    failure_outcome,
    refused_upgrade,
    stay_here,
)
from rollbook.guest.http import CONTROLS, GUEST_PORT, Control, Endpoint
from rollbook.guest.messages import (
    ReplyCheck,
    answers_in_text,
    is_cdp_listing,
    reply_headers,
    request_headers,
    rewrite_cdp,
    target,
)
from rollbook.redaction import redact_head

_LISTING_LIMIT = 16 * 2**20
MAX_REPLY_BYTES = 512 * 2**20
"""Longest reply of a guest server that is passed on; a guest can send without end."""
_DOUBTFUL = frozenset({Outcome.HTTP_5XX, Outcome.TIMEOUT, Outcome.TOO_LONG, Outcome.ABANDONED})
"""Ends after which a control exchange decides if the guest failed, or only this file or command."""
_KEEP_AS_SENT = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


@dataclass
class _Record:
    """An exchange in the making."""

    port: int
    method: str
    path: str
    started: float
    clock: float
    route: str = ""
    """The path without query."""
    status: int | None = None
    received: int = 0
    outcome: Outcome = Outcome.BROKEN
    detail: str = ""
    killed: str = ""
    control: Control = ""
    absent: str = ""

    def ended(self, outcome: Outcome, error: BaseException | str | None = None) -> None:
        self.outcome = outcome
        words = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error or ""
        self.detail = redact_head(words, 500)

    def exchange(self) -> Exchange:
        return Exchange(
            self.port, self.method, redact_head(self.path, PATH_LIMIT), self.outcome, self.status, self.started,
            time.monotonic() - self.clock, self.received, self.detail, self.killed, self.control,
            self.absent,
        )  # fmt: skip


class Forwarder:
    """Forwards loopback ports to a guest while it is entered.

    ```
    async with Forwarder({5000: Endpoint("http://127.0.0.1:32768")}) as forwarder:
        ...  # http://127.0.0.1:{forwarder.ports[5000]} is the guest's port 5000
    forwarder.log.failures
    ```

    `socket_dir` adds a unix socket `<port>.sock` per port, for clients without a network. `on_exchange` is called
    with each finished exchange, on the event loop. `control` is asked with the path of each exchange about a file or a
    command that failed, before the client gets its answer; `settle` waits for those whose client did not wait.
    """

    def __init__(
        self,
        endpoints: Mapping[int, Endpoint],
        *,
        log: ExchangeLog | None = None,
        socket_dir: Path | None = None,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 1830.0,
        file_idle_timeout_s: float | None = None,
        on_exchange: Callable[[Exchange], None] | None = None,
        control: Callable[[str], Awaitable[Control]] | None = None,
    ) -> None:
        self.log = log or ExchangeLog()
        self.ports: dict[int, int] = {}
        self.sockets: dict[int, Path] = {}
        self._endpoints = dict(endpoints)
        self._socket_dir = socket_dir
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=idle_timeout_s)
        self._file_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_s, sock_read=file_idle_timeout_s or idle_timeout_s
        )
        self._on_exchange = on_exchange
        self._ask = control
        self._late: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    # A pooled connection that the guest closed meanwhile would look like a guest that died.
                    connector=aiohttp.TCPConnector(force_close=True, limit=0),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=self._timeout,
                    auto_decompress=False,
                    trust_env=False,
                    trace_configs=[stay_here()],
                )
            )
            # aiohttp sends an idempotent request again when its connection breaks, and records nothing of it
            self._session._retry_connection = False
            for port, endpoint in self._endpoints.items():
                await self._listen(stack, port, endpoint)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def settle(self) -> None:
        """Wait for the control exchanges that are under way."""
        while self._late:
            await asyncio.wait(self._late)

    async def _listen(self, stack: AsyncExitStack, port: int, endpoint: Endpoint) -> None:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._serve(port, endpoint, request)

        runner = web.ServerRunner(
            web.Server(handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.5, access_log=None
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.ports[port] = int(runner.addresses[0][1])
        if self._socket_dir is not None:
            path = self._socket_dir / f"{port}.sock"
            await web.UnixSite(runner, path).start()
            path.chmod(0o666)  # its directory decides who gets here
            self.sockets[port] = path

    async def _serve(self, port: int, endpoint: Endpoint, request: web.BaseRequest) -> web.StreamResponse:
        record = _Record(port, request.method, request.raw_path, time.time(), time.monotonic(), route=request.path)
        try:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                record.method = "WEBSOCKET"
                return await self._websocket(record, endpoint, request)
            return await self._http(record, endpoint, request)
        except asyncio.CancelledError:
            if record.outcome is Outcome.BROKEN:
                record.ended(Outcome.ABANDONED)
            raise
        finally:
            if self._controlled(record):  # its client hung up: so there is no answer to hold back
                late = asyncio.create_task(self._note_controlled(record))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
            else:
                self._note(record)

    def _note(self, record: _Record) -> None:
        exchange = record.exchange()
        self.log.add(exchange)
        if self._on_exchange is not None:
            self._on_exchange(exchange)

    def _controlled(self, record: _Record) -> bool:
        """Return whether the exchange needs a control exchange and has had none."""
        if self._ask is None or record.control or record.port != GUEST_PORT or record.status in (502, 503, 504):
            return False
        return record.route in CONTROLS and record.outcome in _DOUBTFUL

    async def _control(self, record: _Record) -> None:
        if self._controlled(record):
            assert self._ask is not None
            record.control = await self._ask(record.route)

    async def _note_controlled(self, record: _Record) -> None:
        await self._control(record)
        self._note(record)

    async def _http(self, record: _Record, endpoint: Endpoint, request: web.BaseRequest) -> web.StreamResponse:
        try:
            reply = await self._session.request(
                request.method,
                target(endpoint, request.raw_path),
                headers=request_headers(record.port, endpoint, request.headers),
                data=request.content if request.body_exists else None,
                skip_auto_headers=_KEEP_AS_SENT,
                allow_redirects=False,
                timeout=self._file_timeout if record.route == "/file" else self._timeout,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            record.ended(failure_outcome(error), error)
            await self._control(record)
            return _bad_gateway(record)
        try:
            record.status = reply.status
            if 300 <= reply.status < 400:
                record.ended(Outcome.REDIRECTED, f"to {reply.headers.get('Location', 'nowhere')}")
                return _bad_gateway(record)
            if is_cdp_listing(record.port, request.path):
                return await self._listing(record, endpoint, request, reply)
            if reply.status >= 500 and self._ask is not None:
                return await self._refusal(record, request, reply)
            return await self._stream(record, request, reply)
        finally:
            reply.close()

    async def _refusal(
        self, record: _Record, request: web.BaseRequest, reply: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """A reply with 500 or above: passed on when it is known what it means."""
        check = ReplyCheck(record.port, request.path, reply.status, reply.headers.get("Content-Encoding", ""))
        body = bytearray()
        while len(body) < _LISTING_LIMIT and (chunk := await _next_chunk(record, reply)):
            check.feed(chunk)
            body += chunk
        if record.outcome is Outcome.BROKEN:
            _whole(record, reply.status, check)
        await self._control(record)
        if record.outcome is not Outcome.HTTP_5XX:
            return _bad_gateway(record)
        headers = reply_headers(reply.headers)
        headers.popall("Content-Length", None)
        return web.Response(status=reply.status, body=bytes(body), headers=headers)

    async def _stream(
        self, record: _Record, request: web.BaseRequest, reply: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, reason=reply.reason, headers=reply_headers(reply.headers))
        check = ReplyCheck(record.port, request.path, reply.status, reply.headers.get("Content-Encoding", ""))
        try:
            await response.prepare(request)
            while chunk := await _next_chunk(record, reply):
                check.feed(chunk)
                await response.write(chunk)
        except (ConnectionError, asyncio.CancelledError) as error:
            # A client that has all it wants may hang up before we see that it does.
            if reply.content.at_eof():
                _whole(record, reply.status, check)
            else:
                record.ended(Outcome.ABANDONED, error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return response
        if record.outcome is Outcome.BROKEN:
            _whole(record, reply.status, check)
            return response
        await self._control(record)
        if request.transport is not None:
            request.transport.abort()  # the guest broke off: the client must not take this reply for a whole one
        return response

    async def _listing(
        self, record: _Record, endpoint: Endpoint, request: web.BaseRequest, reply: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        body = bytearray()
        while chunk := await _next_chunk(record, reply):
            body += chunk
            if len(body) > _LISTING_LIMIT:
                record.ended(Outcome.BROKEN, ValueError(f"a CDP listing of more than {_LISTING_LIMIT} bytes"))
                return _bad_gateway(record)
        if record.outcome is not Outcome.BROKEN:
            return _bad_gateway(record)
        try:
            listing = rewrite_cdp(bytes(body), request.headers.get("Host", ""), endpoint)
        except ValueError as error:
            if reply.status < 400 and not answers_in_text(request.path):
                record.ended(Outcome.GARBLED, error)
                return _bad_gateway(record)
            listing = bytes(body)  # words for a person: no client looks for an address in them
        record.ended(answered(reply.status))
        headers = reply_headers(reply.headers)
        headers.popall("Content-Length", None)
        return web.Response(status=reply.status, body=listing, headers=headers)

    async def _websocket(self, record: _Record, endpoint: Endpoint, request: web.BaseRequest) -> web.StreamResponse:
        wanted = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]
        try:
            guest = await self._session.ws_connect(
                target(endpoint, request.raw_path),
                headers=request_headers(record.port, endpoint, request.headers, websocket=True),
                protocols=wanted,
                max_msg_size=MAX_MESSAGE_BYTES,
                autoping=False,
            )
        except aiohttp.WSServerHandshakeError as error:
            record.status = error.status
            record.ended(refused_upgrade(error.status), error)
            return _bad_gateway(record)
        except Redirected as error:
            record.status = error.status
            record.ended(Outcome.REDIRECTED, error)
            return _bad_gateway(record)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            record.ended(failure_outcome(error), error)
            return _bad_gateway(record)
        record.status = 101
        async with guest:
            return await pump_websocket(record, request, guest, wanted)


async def _next_chunk(record: _Record, reply: aiohttp.ClientResponse) -> bytes:
    """The next bytes of the guest's reply; empty at its end, or when it broke off (then the record says how)."""
    try:
        chunk = await reply.content.readany()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        record.ended(failure_outcome(error, connected=True), error)
        return b""
    record.received += len(chunk)
    if record.port == GUEST_PORT and record.received > MAX_REPLY_BYTES:
        record.ended(Outcome.TOO_LONG, f"more than {MAX_REPLY_BYTES} bytes")
        return b""
    return chunk


def _whole(record: _Record, status: int, check: ReplyCheck) -> None:
    """The reply has come to its end."""
    record.killed = check.killed()
    record.absent = check.absent()
    if problem := check.problem():
        record.ended(Outcome.GARBLED, problem)
    else:
        record.ended(answered(status))


def _bad_gateway(record: _Record) -> web.Response:
    message = f"forwarder: the guest's port {record.port} gave no reply: {record.outcome}"
    if record.control == "passed":
        # a fact about this file or command: OSWorld's clients read such an answer of the guest server as JSON
        return web.json_response({"status": "error", "message": message}, status=500)
    return web.Response(status=502, text=f"{message}\n")


MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest message that passes; bounds the memory of one connection."""

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def pump_websocket(
    record: _Record,
    request: web.BaseRequest,
    guest: aiohttp.ClientWebSocketResponse,
    protocols: Sequence[str],
) -> web.StreamResponse:
    """Accept the client's upgrade and carry messages both ways until one side closes.

    The outcome is `ok` when the client ended the connection in any way or the guest closed it in order, else `reset`.
    """
    client = web.WebSocketResponse(protocols=protocols, autoping=False, compress=False, max_msg_size=MAX_MESSAGE_BYTES)
    await client.prepare(request)
    record.ended(Outcome.OK)
    up = asyncio.create_task(_carry(client, guest))
    down = asyncio.create_task(_carry(guest, client, record))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if down.done() and not up.done() and guest.close_code in (None, aiohttp.WSCloseCode.ABNORMAL_CLOSURE):
            record.ended(Outcome.RESET, guest.exception() or ConnectionResetError("the guest broke the connection"))
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
    await client.close(code=_polite(guest.close_code))
    await guest.close(code=_polite(client.close_code))
    return client


async def _carry(source: Socket, sink: Socket, record: _Record | None = None) -> None:
    """Copy messages from `source` to `sink` until either side is done."""
    while True:
        message = await source.receive()
        if record is not None and message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            record.received += len(message.data)
        try:
            if message.type is WSMsgType.TEXT:
                await sink.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            elif message.type is WSMsgType.PING:
                await sink.ping(message.data)
            elif message.type is WSMsgType.PONG:
                await sink.pong(message.data)
            else:
                return
        except ConnectionError:
            return


def _polite(code: int | None) -> int:
    """A close code that may be sent: 1005 and 1006 only ever mean that none came."""
    return code if code is not None and code not in (1005, 1006) else aiohttp.WSCloseCode.OK
