"""WebSocket messages between a client of the forwarder and the guest."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import aiohttp
from aiohttp import WSMsgType, web

from rollbook.sandboxes.forwarder.log import Outcome

MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest message that passes; bounds the memory of one connection."""

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class WebSocketRecord(Protocol):
    """What the pump writes down."""

    received: int

    def ended(self, outcome: Outcome, error: BaseException | None = None) -> None:
        """Set the outcome."""
        ...


async def pump_websocket(
    record: WebSocketRecord,
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


async def _carry(source: Socket, sink: Socket, record: WebSocketRecord | None = None) -> None:
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
