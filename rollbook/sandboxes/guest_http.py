"""HTTP to guests: clients without a proxy of the environment, and how much of an answer is read and believed.

The agent owns the guest, so every answer may be hostile: endless, slow, packed, or nested without end.
"""

import asyncio
import json
import ssl
from functools import cache
from typing import Any

import httpx

from rollbook.sandboxes.forwarder.routes import EndpointLike


def guest_http(
    endpoint: EndpointLike,
    *,
    timeout: httpx.Timeout | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """A client whose paths are relative to the endpoint. Use it as a context manager or close it."""
    return httpx.AsyncClient(
        base_url=endpoint.url,
        headers={"Accept-Encoding": "identity", **endpoint.headers},
        timeout=timeout or httpx.Timeout(15.0, connect=5.0),
        verify=_tls() if endpoint.url.startswith("https:") else False,
        trust_env=False,
        transport=transport,
    )


async def ask_guest(
    client: httpx.AsyncClient, method: str, path: str, *, max_bytes: int, total_s: float, **arguments: Any
) -> tuple[int, bytes]:
    """Status and body of one request, sent once; `total_s` seconds for the whole of it.

    Raises httpx.HTTPError without an answer, also for one that is longer than `max_bytes`, late, or packed.
    """
    try:
        async with asyncio.timeout(total_s):  # httpx's own clock restarts with every byte
            async with client.stream(method, path, **arguments) as reply:
                return reply.status_code, await _bounded(reply, max_bytes)
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no whole answer within {total_s:g} s") from error
    except httpx.InvalidURL as error:
        raise httpx.RemoteProtocolError(f"an answer that leads nowhere: {error}") from error


def parse_guest_json(reply: str | bytes) -> Any:
    """The JSON value of a reply; None when it is none, or is nested too deep to read. Half surrogates become `?`."""
    try:
        text = reply if isinstance(reply, str) else reply.decode()
        value = json.loads(text)
        if "\\ud" in text.lower():  # text that no encoder takes would fail far from here
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
        return value
    except (ValueError, RecursionError):
        return None


async def _bounded(reply: httpx.Response, max_bytes: int) -> bytes:
    if (packing := reply.headers.get("Content-Encoding", "identity")) != "identity":
        raise httpx.DecodingError(f"the answer is packed ({packing:.20}), which was not asked for")
    content = bytearray()
    async for chunk in reply.aiter_bytes():
        content += chunk
        if len(content) > max_bytes:
            raise httpx.ReadError(f"the guest's answer is longer than {max_bytes} bytes")
    return bytes(content)


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates costs tens of milliseconds, too much for each client."""
    return ssl.create_default_context()
