"""Rules of the forwarder that need no socket: URLs and headers of requests, and checks of replies.

As upstream, the endpoint's path prefix and headers are added, the client's headers win, and WebSocket URLs in CDP
listings are rewritten. Chromium refuses a Host header that is neither an IP address nor localhost.

Canonical code logs an unreadable answer of the JSON routes and goes on with None, which most metrics score as 0:
`ReplyCheck` therefore finds a half-written or foreign answer here.
"""

import ipaddress
import json
import re
import signal
import zlib
from collections.abc import Mapping
from typing import Any, Literal

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from rollbook.guest.http import CHROMIUM_PORT, GUEST_PORT, TIMED_OUT, Endpoint, parse_guest_json
from rollbook.redaction import redact_head

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


def target(endpoint: Endpoint, path_qs: str) -> URL:
    """The guest's URL of a request: the endpoint's path prefix, then the request's path, byte for byte."""
    return URL(endpoint.url.rstrip("/") + path_qs, encoded=True)


def request_headers(
    port: int, endpoint: Endpoint, client: CIMultiDictProxy[str], websocket: bool = False
) -> CIMultiDict[str]:
    """Headers to send: the client's without the hop-by-hop ones, the route's where the client has none, and Host."""
    dropped = HOP_BY_HOP | _connection_tokens(client) | {"host"}
    if websocket:
        dropped |= _WEBSOCKET_ONLY
    if port == CHROMIUM_PORT:
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


def host_header(port: int, endpoint: Endpoint) -> str:
    """The Host header for a guest port.

    A Host named by the route wins. For CDP it is `localhost`, since Chromium refuses other names, except where
    nothing but the host name leads to the guest (no route headers, a DNS name): there it must stay.
    """
    for name, value in endpoint.headers.items():
        if name.lower() == "host":
            return value
    url = URL(endpoint.url)
    if port == CHROMIUM_PORT and (endpoint.headers or _is_local_or_ip(url.host or "")):
        return "localhost"
    return url.host_port_subcomponent or ""


def is_cdp_listing(port: int, path: str) -> bool:
    """Return whether a reply lists CDP targets and so names WebSocket URLs; clients do not look at its content type."""
    return port == CHROMIUM_PORT and (path == "/json" or path.startswith("/json/"))


def answers_in_text(path: str) -> bool:
    """Return whether this command of Chromium's debugger answers with text, not with a listing."""
    return path.startswith(("/json/activate/", "/json/close/"))


def rewrite_cdp(body: bytes, client_host: str, endpoint: Endpoint) -> bytes:
    """Point the WebSocket URLs of a CDP listing at the forwarder (`client_host` = the client's own Host header).

    Only the two fields that hold them change: titles and addresses of pages are evidence. Raises ValueError for a
    body that is not JSON and for a `webSocketDebuggerUrl` that cannot be led back to this guest.
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
            raise ValueError(
                f"webSocketDebuggerUrl is not a WebSocket URL of this guest: {redact_head(repr(url), 200)}"
            )
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


BODY_LIMIT = 4 * 2**20
"""Bytes of a JSON answer that are parsed; of a longer one only the two ends are looked at."""

JSON_ROUTES: Mapping[str, str | None] = {
    "/accessibility": "AT",
    "/desktop_path": "desktop_path",
    "/execute": "output",
    "/list_directory": "directory_tree",
    "/run_bash_script": None,
    "/run_python": None,
    "/screen_size": "width",
    "/setup/execute": "output",
    "/setup/execute_with_verification": None,
    "/terminal": "output",
    "/window_size": "width",
}
"""Routes that answer 200 with a JSON object, and the key that canonical code reads from it."""

COMMAND_ROUTES = ("/execute", "/run_bash_script", "/run_python", "/setup/execute", "/setup/execute_with_verification")

Killed = Literal["", "at its limit", "for lack of memory"]
"""The reason for which a command was killed; empty when it came to an end of its own."""

LAUNCH_ROUTE = "/setup/launch"
NO_PROGRAM = re.compile(r"\[Errno 2\] No such file or directory: '([^']+)'")
"""Message of a guest server, stock or ours, that was asked to start a program that is not there."""

_TAIL = 64
_PACKED = ("gzip", "x-gzip", "deflate")


class ReplyCheck:
    """Checks one reply while its bytes pass."""

    def __init__(self, port: int, path: str, status: int, encoding: str) -> None:
        self._status = status if port == GUEST_PORT else 0
        self._json = self._status == 200 and path in JSON_ROUTES
        self._command = self._status in (200, 500) and path in COMMAND_ROUTES
        self._starts = self._status == 500 and path in (*COMMAND_ROUTES, LAUNCH_ROUTE)
        self._key = JSON_ROUTES.get(path)
        self._encoding = encoding.strip().lower()
        self._body, self._tail = bytearray(), b""
        self._whole = True

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the body."""
        if not self._json and not self._command and not self._starts:
            return
        self._tail = (self._tail + chunk)[-_TAIL:]
        room = BODY_LIMIT - len(self._body)
        self._whole &= len(chunk) <= room
        self._body += chunk[:room]

    def problem(self) -> str:
        """Return the problem of the reply, now that it has ended; empty without one."""
        if 200 < self._status < 300:
            return f"status {self._status} from a server whose successes are all 200"
        if not self._json:
            return ""
        try:
            return self._problem_of_json()
        except (ValueError, RecursionError, zlib.error) as error:
            return f"no JSON: {type(error).__name__}: {error}"

    def killed(self) -> Killed:
        """Reason for which the command of a complete reply was killed.

        OSWorld's own server does not report memory: there, SIGKILL is taken for the lack of it. Ours distinguishes a
        command that killed itself. The end of a longer answer is not read: its command has printed megabytes.
        """
        answer = parse_guest_json(bytes(self._body)) if self._command and self._whole else None
        if not isinstance(answer, dict):
            return ""
        words = answer.get("message") if self._status == 500 else answer.get("error")
        if answer.get("status") == "error" and isinstance(words, str) and TIMED_OUT.search(words):
            return "at its limit"
        code = answer.get("returncode", answer.get("return_code"))
        return "for lack of memory" if answer.get("out_of_memory", code == -signal.SIGKILL) is True else ""

    def absent(self) -> str:
        """Program that the guest could not start, since it does not have it; empty otherwise."""
        answer = parse_guest_json(bytes(self._body)) if self._starts and self._whole else None
        words = answer.get("message") if isinstance(answer, dict) else None
        match = NO_PROGRAM.search(words) if isinstance(words, str) else None
        return redact_head(match[1], 100) if match else ""

    def _problem_of_json(self) -> str:
        body, whole = bytes(self._body), self._whole
        if self._encoding in _PACKED and whole:
            body, whole = _unpacked(body)
        elif self._encoding in _PACKED:
            return ""
        elif self._encoding not in ("", "identity"):
            return f"content encoding {self._encoding!r}, which was not requested"
        if not whole:
            ends = body.lstrip()[:1] + (self._tail.rstrip()[-1:] if self._encoding not in _PACKED else b"}")
            return "" if ends == b"{}" else "no JSON object: it does not begin with { and end with }"
        answer = json.loads(body)
        if not isinstance(answer, dict):
            return f"JSON, but a {type(answer).__name__} instead of an object"
        return "" if self._key is None or self._key in answer else f"JSON without {self._key!r}"


def _unpacked(body: bytes) -> tuple[bytes, bool]:
    """The first `BODY_LIMIT` bytes of a packed body, and whether that is all. ValueError: it breaks off."""
    stream = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # recognises gzip and zlib by itself
    unpacked = stream.decompress(body, BODY_LIMIT)
    if stream.eof:
        return unpacked, True
    if stream.unconsumed_tail:
        return unpacked, False
    raise ValueError("packed data breaks off")
