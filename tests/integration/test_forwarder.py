"""The forwarder on real loopback sockets: what passes, and what each kind of failure is recorded as."""

import asyncio
import contextlib
import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from rollbook.errors import SandboxLost
from rollbook.guest.exchanges import Exchange, Outcome
from rollbook.guest.forwarder import Forwarder
from rollbook.guest.http import Control, Endpoint, read_nonce
from tests.doubles.http_guest import HttpGuest, command, echo_socket, endless, half, reset, silence, status


@pytest.fixture
async def guest() -> AsyncIterator[HttpGuest]:
    async with HttpGuest() as guest:
        yield guest


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


class Recorded(list[Exchange]):
    """Exchanges in the order in which they ended."""

    def outcomes(self) -> list[Outcome]:
        return [exchange.outcome for exchange in self]

    async def reach(self, count: int) -> None:
        """Wait until so many exchanges have ended."""
        async with asyncio.timeout(10):
            while len(self) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def forwarding(
    endpoint: Endpoint, port: int = 5000, idle_timeout_s: float = 30.0, socket_dir: Path | None = None
) -> AsyncIterator[tuple[str, Recorded, Forwarder]]:
    recorded = Recorded()
    async with Forwarder(
        {port: endpoint}, idle_timeout_s=idle_timeout_s, socket_dir=socket_dir, on_exchange=recorded.append
    ) as forwarder:
        yield f"http://127.0.0.1:{forwarder.ports[port]}", recorded, forwarder


@pytest.mark.parametrize(
    ("fault", "outcome"), [(silence, "timeout"), (endless, "too_long"), (status(500), "http_5xx"), (reset, "reset")]
)
@pytest.mark.parametrize("verdict", ["passed", "refused", "unanswered"])
async def test_a_file_that_fails_is_compared_with_a_known_one(
    guest: HttpGuest,
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    fault: Any,
    outcome: str,
    verdict: Control,
) -> None:
    """The control comes before the client's answer: whatever it does next, the record is complete."""
    monkeypatch.setattr("rollbook.guest.forwarder.MAX_REPLY_BYTES", 1_000_000)
    asked: list[str] = []

    async def control(path: str) -> Control:
        asked.append(path)
        return verdict

    guest.routes["/file"] = fault
    recorded = Recorded()
    endpoints = {5000: Endpoint(guest.url)}
    async with Forwarder(endpoints, file_idle_timeout_s=0.5, on_exchange=recorded.append, control=control) as forwarder:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(f"http://127.0.0.1:{forwarder.ports[5000]}/file") as reply:
                assert reply.status >= 500 or fault is endless
                await reply.read()
        await recorded.reach(1)
    compared = fault is not reset  # a broken connection is not about the file
    assert (recorded[0].outcome, asked) == (outcome, ["/file"] if compared else [])
    answered = outcome == "http_5xx"
    assert recorded[0].delivery_failed is (not answered and not (compared and verdict == "passed"))
    assert recorded[0].guest_broke is (compared and verdict == "refused")


async def test_a_client_that_hangs_up_leaves_its_control_behind(
    guest: HttpGuest, session: aiohttp.ClientSession
) -> None:
    """Canonical code waits 90 s for a command of Python, the guest 120 s."""

    async def control(path: str) -> Control:
        await asyncio.sleep(0.2)
        return "passed"

    guest.routes["/execute"] = silence
    recorded = Recorded()
    async with Forwarder({5000: Endpoint(guest.url)}, on_exchange=recorded.append, control=control) as forwarder:
        url = f"http://127.0.0.1:{forwarder.ports[5000]}/execute"
        with pytest.raises(TimeoutError):
            await session.post(url, timeout=aiohttp.ClientTimeout(total=0.5))
        await recorded.reach(1)
        await forwarder.settle()
    assert [(one.outcome, one.control, one.delivery_failed) for one in recorded] == [("abandoned", "passed", False)]


async def test_bodies_pass_unchanged_both_ways(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    big = bytes(range(256)) * 40_000

    async def digest_and_repeat(request: web.BaseRequest) -> web.StreamResponse:
        body = guest.seen[-1][3]
        return web.Response(body=body, headers={"X-Digest": hashlib.sha256(body).hexdigest()})

    guest.routes["/setup/upload"] = digest_and_repeat
    async with (
        forwarding(Endpoint(guest.url)) as (url, recorded, _),
        session.post(URL(f"{url}/setup/upload?a=%2Fb&c=d+e", encoded=True), data=big) as reply,
    ):
        assert reply.headers["X-Digest"] == hashlib.sha256(big).hexdigest()
        assert await reply.read() == big
    method, path, headers, body = guest.seen[0]
    assert (method, path, body) == ("POST", "/setup/upload?a=%2Fb&c=d+e", big)
    assert headers["Content-Length"] == str(len(big))
    assert recorded[0].received_bytes == len(big)
    assert recorded.outcomes() == [Outcome.OK]


async def test_compressed_and_chunked_replies_are_not_touched(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    packed = gzip.compress(b"hello" * 1000)

    async def chunks(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"})
        await response.prepare(request)
        await response.write(packed[:10])
        await asyncio.sleep(0.01)
        await response.write(packed[10:])
        return response

    guest.routes["/file"] = chunks
    async with forwarding(Endpoint(guest.url)) as (url, recorded, _), session.get(f"{url}/file") as reply:
        assert await reply.read() == packed
    assert recorded.outcomes() == [Outcome.OK]


async def test_prefix_and_route_headers_lead_to_the_guest_and_the_clients_win(
    guest: HttpGuest, session: aiohttp.ClientSession
) -> None:
    guest.routes["/box/7/terminal"] = {"output": None}
    endpoint = Endpoint(f"{guest.url}/box/7/", {"X-Route": "abc", "X-Both": "route", "Host": "5000-abc.example"})
    async with (
        forwarding(endpoint) as (url, _, _),
        session.get(f"{url}/terminal", headers={"X-Both": "client"}) as reply,
    ):
        assert reply.status == 200
    headers = guest.seen[0][2]
    assert (headers["X-Route"], headers["X-Both"], headers["Host"]) == ("abc", "client", "5000-abc.example")


async def test_proxy_variables_are_ignored(
    guest: HttpGuest, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with forwarding(Endpoint(guest.url)) as (url, _, _), session.get(f"{url}/terminal") as reply:
        assert reply.status == 200


@pytest.mark.parametrize(("code", "outcome"), [(200, "ok"), (404, "http_4xx"), (500, "http_5xx"), (503, "http_5xx")])
async def test_a_status_is_passed_on_and_recorded(
    guest: HttpGuest, session: aiohttp.ClientSession, code: int, outcome: str
) -> None:
    guest.routes["/file"] = status(code)
    async with forwarding(Endpoint(guest.url)) as (url, recorded, forwarder):
        async with session.post(f"{url}/file", data={"file_path": "/x"}) as reply:
            assert reply.status == code
        await recorded.reach(1)
    assert (recorded[0].outcome, recorded[0].status) == (outcome, code)
    assert recorded[0].delivery_failed is (code == 503)
    assert forwarder.log.by_port() == {5000: {outcome: 1}}


def leading_to(url: str, code: int = 302) -> Any:
    """Answer with another address, without following it up."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=code, headers={"Location": url})

    return answer


@pytest.mark.parametrize("port", [5000, 8080, 9222])
@pytest.mark.parametrize("code", [300, 301, 302, 303, 304, 307, 308])
async def test_no_redirect_reaches_the_client(
    guest: HttpGuest, session: aiohttp.ClientSession, port: int, code: int
) -> None:
    async with HttpGuest() as elsewhere, forwarding(Endpoint(guest.url), port=port) as (url, recorded, _):
        guest.routes["/json/version"] = leading_to(f"{elsewhere.url}/internal", code)
        async with session.get(f"{url}/json/version") as reply:
            assert (reply.status, reply.headers.get("Location"), reply.history) == (502, None, ())
        await recorded.reach(1)
        assert elsewhere.seen == []
    assert (recorded[0].outcome, recorded[0].status, recorded[0].delivery_failed) == (Outcome.REDIRECTED, code, True)


@pytest.mark.parametrize("code", [302, 304, 307])
async def test_a_websocket_upgrade_is_not_redirected_either(
    guest: HttpGuest, session: aiohttp.ClientSession, code: int
) -> None:
    async with HttpGuest(routes={"/internal": echo_socket}) as elsewhere:
        guest.routes["/devtools/browser/1"] = leading_to(f"{elsewhere.url}/internal", code)
        async with forwarding(Endpoint(guest.url), port=9222) as (url, recorded, _):
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(f"{url}/devtools/browser/1")
            await recorded.reach(1)
        assert elsewhere.seen == []
    assert (recorded[0].outcome, recorded[0].status) == (Outcome.REDIRECTED, code)


@pytest.mark.parametrize(
    ("path", "answer", "outcome"),
    [
        ("/terminal", b'{"output": "hel', Outcome.GARBLED),
        ("/terminal", b"<html>the sandbox is resuming</html>", Outcome.GARBLED),
        ("/setup/execute", {"status": "resuming"}, Outcome.GARBLED),
        ("/file", b'{"output": "hel', Outcome.OK),
        ("/file", status(204), Outcome.GARBLED),
        ("/terminal", {"output": None}, Outcome.OK),
    ],
)
async def test_an_answer_that_its_route_never_gives_is_recorded(
    guest: HttpGuest, session: aiohttp.ClientSession, path: str, answer: Any, outcome: Outcome
) -> None:
    guest.routes[path] = answer
    async with forwarding(Endpoint(guest.url)) as (url, recorded, _):
        async with session.post(f"{url}{path}") as reply:
            await reply.read()
        await recorded.reach(1)
    assert recorded.outcomes() == [outcome]
    assert recorded[0].delivery_failed is bool(recorded[0].detail) is (outcome is Outcome.GARBLED)


async def test_a_closed_port_is_refused(session: aiohttp.ClientSession) -> None:
    async with HttpGuest() as gone:
        endpoint = Endpoint(gone.url)
    async with forwarding(endpoint) as (url, recorded, _), session.get(f"{url}/terminal") as reply:
        assert reply.status == 502
    assert recorded.outcomes() == [Outcome.REFUSED]


async def test_a_name_that_does_not_exist_is_unreachable(session: aiohttp.ClientSession) -> None:
    async with (
        forwarding(Endpoint("http://no-such-guest.invalid")) as (url, recorded, _),
        session.get(f"{url}/terminal") as reply,
    ):
        assert reply.status == 502
    assert recorded.outcomes() == [Outcome.UNREACHABLE]


async def test_a_connection_that_breaks_before_the_reply_is_reset(
    guest: HttpGuest, session: aiohttp.ClientSession
) -> None:
    guest.routes["/execute"] = reset
    async with forwarding(Endpoint(guest.url)) as (url, recorded, _), session.post(f"{url}/execute", json={}) as reply:
        assert reply.status == 502
    assert recorded.outcomes() == [Outcome.RESET]
    assert len(guest.seen) == 1, "a command must not be sent twice"


async def test_half_a_reply_never_looks_like_a_whole_one(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    guest.routes["/file"] = half
    async with forwarding(Endpoint(guest.url)) as (url, recorded, _):
        with pytest.raises(aiohttp.ClientError):
            async with session.post(f"{url}/file") as reply:
                await reply.read()
        await recorded.reach(1)
    assert recorded.outcomes() == [Outcome.RESET]


async def test_silence_is_a_timeout(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    guest.routes["/execute"] = silence
    async with (
        forwarding(Endpoint(guest.url), idle_timeout_s=0.2) as (url, recorded, _),
        session.post(f"{url}/execute") as reply,
    ):
        assert reply.status == 502
    assert recorded.outcomes() == [Outcome.TIMEOUT]


async def test_a_client_that_gives_up_is_recorded(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    guest.routes["/execute"] = silence
    async with forwarding(Endpoint(guest.url)) as (url, recorded, _):
        with pytest.raises(TimeoutError):
            async with session.post(f"{url}/execute", timeout=aiohttp.ClientTimeout(total=0.2)):
                pass
        await recorded.reach(1)
    assert recorded.outcomes() == [Outcome.ABANDONED]


async def test_unix_sockets_lead_to_the_same_guest(guest: HttpGuest, tmp_path: Path) -> None:
    async with forwarding(Endpoint(guest.url), socket_dir=tmp_path) as (_, recorded, forwarder):
        connector = aiohttp.UnixConnector(str(forwarder.sockets[5000]))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://guest/terminal") as reply:
            assert reply.status == 200
    assert recorded.outcomes() == [Outcome.OK]


async def test_websocket_messages_pass_and_a_client_may_leave(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    guest.routes["/devtools/browser/1"] = echo_socket
    async with forwarding(Endpoint(guest.url), port=9222) as (url, recorded, _):
        socket = await session.ws_connect(f"{url}/devtools/browser/1", protocols=["cdp"], max_msg_size=0)
        assert socket.protocol == "cdp"
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
        await socket.send_bytes(b"x" * 2_000_000)
        assert len(await socket.receive_bytes()) == 2_000_000
        await socket.close()
        await recorded.reach(1)
    assert guest.seen[0][2]["Host"] == "localhost"
    assert (recorded[0].method, recorded[0].outcome, recorded[0].status) == ("WEBSOCKET", Outcome.OK, 101)
    assert recorded[0].received_bytes == 2_000_005


@pytest.mark.parametrize(("word", "outcome"), [("bye", Outcome.OK), ("die", Outcome.RESET)])
async def test_a_websocket_closed_in_order_is_told_from_a_broken_one(
    guest: HttpGuest, session: aiohttp.ClientSession, word: str, outcome: Outcome
) -> None:
    guest.routes["/devtools/page/1"] = echo_socket
    async with forwarding(Endpoint(guest.url), port=9222) as (url, recorded, _):
        socket = await session.ws_connect(f"{url}/devtools/page/1")
        await socket.send_str(word)
        message = await socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)
        await recorded.reach(1)
    assert recorded.outcomes() == [outcome]


async def test_a_refused_websocket_upgrade_keeps_its_status(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    guest.routes["/devtools/browser/1"] = status(403)
    async with forwarding(Endpoint(guest.url), port=9222) as (url, recorded, _):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(f"{url}/devtools/browser/1")
    assert (recorded[0].outcome, recorded[0].status) == (Outcome.HTTP_4XX, 403)


async def test_a_stock_guest_is_known_by_its_boot(guest: HttpGuest) -> None:
    """The double runs the question on this machine, as the guest server does in the guest."""

    async def execute(_: web.BaseRequest) -> web.StreamResponse:
        argv = json.loads(guest.seen[-1][3])["command"]
        shell = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        output, _unused = await shell.communicate()
        return web.json_response(command(output.decode()))

    assert await read_nonce(Endpoint(guest.url), 5.0) == guest.nonce
    guest.nonce = ""
    guest.routes["/execute"] = execute
    boot = await read_nonce(Endpoint(guest.url), 5.0)
    assert boot.startswith("boot-")
    assert await read_nonce(Endpoint(guest.url), 5.0) == boot
    guest.routes["/execute"] = command("another boot 17\n")
    assert await read_nonce(Endpoint(guest.url), 5.0) != boot


@pytest.mark.parametrize("answer", [status(500), command("", "sh: not found"), {"no": "output"}, reset])
async def test_a_guest_without_an_identity_counts_as_lost(guest: HttpGuest, answer: Any) -> None:
    guest.nonce = ""
    guest.routes["/execute"] = answer
    with pytest.raises(SandboxLost):
        await read_nonce(Endpoint(guest.url), 5.0)


async def test_cdp_listings_point_back_at_the_forwarder(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    guest.routes["/box/json/version"] = {"webSocketDebuggerUrl": "ws://localhost/box/devtools/browser/1"}
    guest.routes["/box/devtools/browser/1"] = echo_socket
    async with forwarding(Endpoint(f"{guest.url}/box"), port=9222) as (url, recorded, _):
        async with session.get(f"{url}/json/version") as reply:
            listing = await reply.json()
        assert listing == {"webSocketDebuggerUrl": url.replace("http", "ws") + "/devtools/browser/1"}
        socket = await session.ws_connect(listing["webSocketDebuggerUrl"])
        await socket.send_str("there")
        assert await socket.receive_str() == "there"
        await socket.close()
        await recorded.reach(2)
    assert recorded.outcomes() == [Outcome.OK, Outcome.OK]


@pytest.mark.parametrize(
    "listing",
    [
        b'{"webSocketDebuggerUrl": "http://127.0.0.1:1/x"}',
        b'{"webSocketDebuggerUrl": ["ws://127.0.0.1:1/x"]}',
        b'{"webSocketDebuggerUrl": "ws://127.0.0.1',
        b"[" * 200_000,
    ],
)
async def test_a_listing_that_leads_elsewhere_is_refused(
    guest: HttpGuest, session: aiohttp.ClientSession, listing: bytes
) -> None:
    guest.routes["/json/version/"] = listing  # as application/octet-stream: clients do not care
    async with (
        forwarding(Endpoint(guest.url), port=9222) as (url, recorded, _),
        session.get(f"{url}/json/version/") as reply,
    ):
        assert reply.status == 502
        assert b"ws://" not in await reply.read()
        await recorded.reach(1)
    assert (recorded[0].outcome, recorded[0].delivery_failed) == (Outcome.GARBLED, True)


async def test_words_of_the_browser_pass(guest: HttpGuest, session: aiohttp.ClientSession) -> None:
    guest.routes |= {"/json/close/A": b"Target is closing", "/json/version": status(500, "no")}
    async with forwarding(Endpoint(guest.url), port=9222) as (url, recorded, _):
        async with session.get(f"{url}/json/close/A") as reply:
            assert (reply.status, await reply.read()) == (200, b"Target is closing")
        async with session.get(f"{url}/json/version") as reply:
            assert reply.status == 500
        await recorded.reach(2)
    assert recorded.outcomes() == [Outcome.OK, Outcome.HTTP_5XX]
