"""HTTP clients for guests: no proxy of the environment, the endpoint's headers, and TLS set up at most once."""

import ssl
from functools import cache

import httpx

from rollbook.sandboxes.provider import Endpoint


def guest_http(
    endpoint: Endpoint,
    *,
    timeout: httpx.Timeout | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """A client whose paths are relative to the endpoint. Use it as a context manager or close it."""
    return httpx.AsyncClient(
        base_url=endpoint.url,
        headers=dict(endpoint.headers),
        timeout=timeout or httpx.Timeout(15.0, connect=5.0),
        verify=_tls() if endpoint.url.startswith("https:") else False,
        trust_env=False,
        transport=transport,
    )


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates costs tens of milliseconds, too much for each client."""
    return ssl.create_default_context()
