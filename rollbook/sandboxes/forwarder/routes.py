"""Rules of the forwarder that need no socket: where a request goes, with which headers, and what CDP replies say.

Sources: upstream contract §6.2 (path prefix, route headers, client headers win, WebSocket URLs in CDP JSON);
OSWorld notes: Chromium refuses a Host header that is neither an IP address nor localhost.
"""

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

CDP_PORT = 9222
"""Guest port of Chromium's remote debugging."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_WEBSOCKET_ONLY = frozenset(
    {"sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol"}
)
_SOCKET_URL = re.compile(r"^(wss?)://[^/?#\\\s]+([^?#\\\s]*)", re.IGNORECASE)
_FRONTEND_PARAMETER = re.compile(r"([?&])wss?=[^/?&#]+([^?&#]*)", re.IGNORECASE)


class EndpointLike(Protocol):
    """Where one guest port can be reached: what a provider's `endpoint(port)` gives."""

    @property
    def url(self) -> str:
        """`http(s)://host[:port][/prefix]`."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that a gateway needs to find the guest; may hold tokens."""
        ...


def target(endpoint: EndpointLike, path_qs: str) -> URL:
    """The guest's URL of a request: the endpoint's path prefix, then the request's path, byte for byte."""
    return URL(endpoint.url.rstrip("/") + path_qs, encoded=True)


def request_headers(
    port: int, endpoint: EndpointLike, client: CIMultiDictProxy[str], websocket: bool = False
) -> CIMultiDict[str]:
    """Headers to send: the client's without the hop-by-hop ones, the route's where the client has none, and Host."""
    dropped = HOP_BY_HOP | _connection_tokens(client) | {"host"}
    if websocket:
        dropped |= _WEBSOCKET_ONLY
    if port == CDP_PORT:
        dropped |= {"accept-encoding"}
    headers = CIMultiDict((name, value) for name, value in client.items() if name.lower() not in dropped)
    for name, value in endpoint.headers.items():
        if name.lower() != "host":
            headers.setdefault(name, value)
    headers["Host"] = host_header(port, endpoint)
    return headers


def reply_headers(guest: Mapping[str, str]) -> CIMultiDict[str]:
    """The guest's headers without the hop-by-hop ones."""
    headers = CIMultiDict(guest)
    for name in HOP_BY_HOP:
        headers.popall(name, None)
    return headers


def host_header(port: int, endpoint: EndpointLike) -> str:
    """The Host header for a guest port.

    A Host named by the route wins. For CDP it is `localhost`, since Chromium refuses other names, except where
    nothing but the host name leads to the guest (no route headers, a DNS name): there it must stay.
    """
    for name, value in endpoint.headers.items():
        if name.lower() == "host":
            return value
    url = URL(endpoint.url)
    if port == CDP_PORT and (endpoint.headers or _is_local_or_ip(url.host or "")):
        return "localhost"
    return url.host_port_subcomponent or ""


def is_cdp_listing(port: int, path: str) -> bool:
    """Whether a reply lists CDP targets and so names WebSocket URLs; clients do not look at its content type."""
    return port == CDP_PORT and (path == "/json" or path.startswith("/json/"))


def answers_in_text(path: str) -> bool:
    """Whether this command of Chromium's debugger answers with words, not with a listing."""
    return path.startswith(("/json/activate/", "/json/close/"))


def rewrite_cdp(body: bytes, client_host: str, endpoint: EndpointLike) -> bytes:
    """Point the WebSocket URLs of a CDP listing at the forwarder (`client_host` = the client's own Host header).

    Only the two fields that hold them change: titles and addresses of pages are evidence. Raises ValueError for what
    is no JSON and for a `webSocketDebuggerUrl` that cannot be led back to this guest.
    """
    try:
        listing = json.loads(body)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    prefix = URL(endpoint.url).path.rstrip("/")
    for entry in listing if isinstance(listing, list) else [listing]:
        if isinstance(entry, dict):
            _point_here(entry, client_host, prefix)
    return json.dumps(listing, ensure_ascii=False).encode()


def _point_here(listed: dict[str, Any], client_host: str, prefix: str) -> None:
    def path_of(match: re.Match[str]) -> str:
        path = match[2] or ""
        return path.removeprefix(prefix) if path.startswith(prefix + "/") else path

    url = listed.get("webSocketDebuggerUrl")
    if url is not None:
        if not isinstance(url, str) or not _SOCKET_URL.match(url):
            raise ValueError(f"webSocketDebuggerUrl is no WebSocket URL of this guest: {url!r:.200}")
        listed["webSocketDebuggerUrl"] = _SOCKET_URL.sub(lambda m: f"ws://{client_host}{path_of(m)}", url)
    if isinstance(url := listed.get("devtoolsFrontendUrl"), str):
        listed["devtoolsFrontendUrl"] = _FRONTEND_PARAMETER.sub(lambda m: f"{m[1]}ws={client_host}{path_of(m)}", url)


def _connection_tokens(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    tokens = ",".join(headers.getall("Connection", []))
    return frozenset(token.strip().lower() for token in tokens.split(",") if token.strip())


def _is_local_or_ip(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
