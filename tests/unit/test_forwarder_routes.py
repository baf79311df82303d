"""Targets and headers of forwarded requests, and rewritten CDP listings."""

import json

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from rollbook.guest.exchanges import Exchange, ExchangeLog, Outcome
from rollbook.guest.http import Endpoint
from rollbook.guest.messages import host_header, is_cdp_listing, request_headers, rewrite_cdp, target


def client(**headers: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()}))


@pytest.mark.parametrize(
    ("port", "endpoint", "host"),
    [
        (5000, Endpoint("http://127.0.0.1:32768"), "127.0.0.1:32768"),
        (9222, Endpoint("http://127.0.0.1:32768"), "localhost"),
        (9222, Endpoint("http://[::1]:9222"), "localhost"),
        (9222, Endpoint("http://localhost:9222"), "localhost"),
        (9222, Endpoint("https://gateway.example", {"E2b-Sandbox-Id": "x"}), "localhost"),
        (9222, Endpoint("https://9222-abc.example"), "9222-abc.example"),
        (9222, Endpoint("http://10.0.0.1", {"host": "9222-abc.example"}), "9222-abc.example"),
        (5000, Endpoint("https://5000-abc.example"), "5000-abc.example"),
    ],
)
def test_host(port: int, endpoint: Endpoint, host: str) -> None:
    assert host_header(port, endpoint) == host


def test_hop_by_hop_headers_stay_here() -> None:
    sent = request_headers(
        5000,
        Endpoint("http://h"),
        client(Connection="keep-alive, X-Private", X_Private="1", Keep_Alive="5", TE="gzip", Accept="a", Host="me"),
    )
    assert dict(sent) == {"Accept": "a", "Host": "h"}


def test_repeated_client_headers_are_all_sent() -> None:
    several = CIMultiDictProxy(CIMultiDict([("Cookie", "a=1"), ("Cookie", "b=2")]))
    assert request_headers(5000, Endpoint("http://h"), several).getall("Cookie") == ["a=1", "b=2"]


def test_websocket_handshake_headers_are_made_anew() -> None:
    sent = request_headers(
        9222,
        Endpoint("http://h"),
        client(Sec_WebSocket_Key="k", Sec_WebSocket_Version="13", Origin="o"),
        websocket=True,
    )
    assert set(sent) == {"Origin", "Host"}


def test_target_keeps_the_path_byte_for_byte() -> None:
    url = target(Endpoint("https://gateway.example:8443/box/1/"), "/file?path=%2Fhome%2Fuser&x=a+b")
    assert str(url) == "https://gateway.example:8443/box/1/file?path=%2Fhome%2Fuser&x=a+b"


def test_cdp_urls_lose_the_prefix_and_get_the_clients_host() -> None:
    listing = [
        {
            "devtoolsFrontendUrl": "/devtools/inspector.html?ws=localhost/box/devtools/page/A",
            "url": "https://example.org/ws://not-a-socket",
            "webSocketDebuggerUrl": "wss://9222-abc.example/box/devtools/page/A",
        }
    ]
    rewritten = json.loads(
        rewrite_cdp(json.dumps(listing).encode(), "127.0.0.1:4444", Endpoint("https://h.example/box"))
    )
    assert rewritten[0]["webSocketDebuggerUrl"] == "ws://127.0.0.1:4444/devtools/page/A"
    assert rewritten[0]["devtoolsFrontendUrl"] == "/devtools/inspector.html?ws=127.0.0.1:4444/devtools/page/A"
    assert rewritten[0]["url"] == listing[0]["url"], "addresses of pages are evidence"


@pytest.mark.parametrize(
    ("port", "path", "is_listing"),
    [
        (9222, "/json/version/", True),
        (9222, "/json", True),
        (9222, "/json/list", True),
        (9222, "/jsonp", False),
        (5000, "/json/version", False),
    ],
)
def test_only_cdp_listings_are_rewritten(port: int, path: str, is_listing: bool) -> None:
    assert is_cdp_listing(port, path) is is_listing


@pytest.mark.parametrize("url", ["WS://evil.example:1/devtools/browser/1", "wSs://localhost/devtools/browser/1"])
def test_the_case_of_a_scheme_hides_no_url(url: str) -> None:
    rewritten = rewrite_cdp(json.dumps({"webSocketDebuggerUrl": url}).encode(), "127.0.0.1:4", Endpoint("http://h"))
    assert json.loads(rewritten) == {"webSocketDebuggerUrl": "ws://127.0.0.1:4/devtools/browser/1"}


@pytest.mark.parametrize(
    "url",
    [
        " ws://evil.example/x",  # a browser's URL parser drops the blank
        "w\ts://evil.example/x",
        "ws:evil.example/x",
        "ws:/\\evil.example/x",
        "http://evil.example/x",
        "//evil.example/x",
        "",
        ["ws://evil.example/x"],  # becomes a string in JavaScript
        {"href": "ws://evil.example/x"},
        7,
    ],
)
def test_an_url_that_cannot_be_led_back_is_refused(url: object) -> None:
    body = json.dumps([{"webSocketDebuggerUrl": url}]).encode()
    with pytest.raises(ValueError, match="webSocketDebuggerUrl"):
        rewrite_cdp(body, "127.0.0.1:4", Endpoint("http://h"))


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"webSocketDebuggerUrl": "ws://evil/\xff"}', b"[" * 200_000])
def test_a_listing_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        rewrite_cdp(body, "127.0.0.1:4", Endpoint("http://h"))


def exchange(outcome: Outcome, status: int | None = None, port: int = 5000) -> Exchange:
    return Exchange(port, "GET", "/", outcome, status, 0.0, 0.0, 0)


def test_the_log_counts_everything_and_keeps_the_newest_failures() -> None:
    log = ExchangeLog(keep=2)
    for one in (
        *[exchange(Outcome.OK, 200)] * 5,
        exchange(Outcome.REFUSED),
        exchange(Outcome.HTTP_4XX, 404),
        exchange(Outcome.HTTP_5XX, 502),
        exchange(Outcome.REFUSED, port=9222),
    ):
        log.add(one)
    assert log.by_port() == {5000: {"ok": 5, "refused": 1, "http_4xx": 1, "http_5xx": 1}, 9222: {"refused": 1}}
    assert [e.outcome for e in log.failures] == ["http_5xx", "refused"]
    assert log.undelivered == {5000: 2, 9222: 1}
    assert log.count(5000) == 8


@pytest.mark.parametrize(
    ("outcome", "status", "failed"),
    [
        (Outcome.OK, 200, False),
        (Outcome.HTTP_4XX, 404, False),
        (Outcome.HTTP_5XX, 500, False),
        (Outcome.HTTP_5XX, 502, True),
        (Outcome.HTTP_5XX, 503, True),
        (Outcome.HTTP_5XX, 504, True),
        (Outcome.RESET, 200, True),
        (Outcome.TIMEOUT, None, True),
        (Outcome.ABANDONED, None, True),
        (Outcome.UNREACHABLE, None, True),
        (Outcome.REDIRECTED, 302, True),
        (Outcome.GARBLED, 200, True),
        (Outcome.BROKEN, None, True),
    ],
)
def test_what_counts_as_not_delivered(outcome: Outcome, status: int | None, failed: bool) -> None:
    assert exchange(outcome, status).delivery_failed is failed
