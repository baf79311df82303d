"""Which outcome a status or an error of the HTTP client means (DESIGN §7)."""

import ssl

import aiohttp

from rollbook.sandboxes.forwarder.log import Outcome


def failure_outcome(error: BaseException, connected: bool = False) -> Outcome:
    """Which outcome an error of the HTTP client means; `connected`: a reply had begun."""
    if isinstance(error, TimeoutError):
        return Outcome.TIMEOUT
    if not connected and isinstance(error, aiohttp.ClientConnectorError | ssl.SSLError):
        refused = isinstance(getattr(error, "os_error", None), ConnectionRefusedError)
        return Outcome.REFUSED if refused else Outcome.UNREACHABLE
    return Outcome.RESET


def stay_here() -> aiohttp.TraceConfig:
    """Keeps the HTTP client from following a redirect, which it does for a WebSocket and cannot be told not to."""

    async def refuse(_session: object, _context: object, params: aiohttp.TraceRequestRedirectParams) -> None:
        params.response.close()
        raise Redirected(params.response.status, f"to {params.response.headers.get('Location', 'nowhere')}")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config


class Redirected(aiohttp.ClientError):
    """The guest answered a WebSocket upgrade with another address."""

    def __init__(self, status: int, where: str) -> None:
        super().__init__(where)
        self.status = status


def refused_upgrade(status: int) -> Outcome:
    """Which outcome an upgrade to a WebSocket is that got this status instead of 101."""
    if 300 <= status < 400:
        return Outcome.REDIRECTED
    return answered(status) if status >= 400 else Outcome.RESET


def answered(status: int) -> Outcome:
    """Which outcome a complete reply with this status is."""
    if status >= 500:
        return Outcome.HTTP_5XX
    return Outcome.HTTP_4XX if status >= 400 else Outcome.OK
