"""A guest that answers to do harm: endless, slow, packed, nested. A Rollbook error follows within bounded time."""

import asyncio
import contextlib
import io
import json
import os
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from rollbook.desktop.client import MAX_OUTPUT_BYTES, GuestClient, GuestRefused, Retry
from rollbook.desktop.journal import MARK, ActionResult, Patience, perform, read_journal
from rollbook.desktop.observe import observe
from rollbook.desktop.runtimes import CANONICAL, probe_runtime
from rollbook.errors import ActionFailed, SandboxLost, SandboxStartFailed
from rollbook.guest.http import (
    MAX_PIXELS,
    Endpoint,
    guest_http,
    parse_guest_json,
    read_nonce,
    screenshot_size,
    wait_ready,
)
from tests.doubles.http_guest import Handler, HttpGuest, command, reset, status
from tests.unit.test_guest_client import png

DEEP = b"[" * 200_000
MIB = 1024 * 1024
PACKED = zlib.compress(bytes(64 * MIB), 9)


@pytest.fixture
async def guest() -> AsyncIterator[HttpGuest]:
    async with HttpGuest() as double:
        yield double


@pytest.fixture
async def client(guest: HttpGuest) -> AsyncIterator[GuestClient]:
    async with GuestClient(Endpoint(guest.url), retry=Retry((0.0,)), read_timeout_s=5.0) as opened:
        yield opened


def flood(mebibytes: int) -> Handler:
    """More data than requested; stops when the client stops reading."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(mebibytes):
            await response.write(b"x" * MIB)
        return response

    return answer


async def drip(request: web.BaseRequest) -> web.StreamResponse:
    """One byte now and then, so that no single read ever takes long."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x")
        await asyncio.sleep(0.05)


async def packed(_: web.BaseRequest) -> web.StreamResponse:
    """Sixty-four MiB in sixty-four KiB."""
    return web.Response(body=PACKED, headers={"Content-Encoding": "deflate"})


@pytest.mark.parametrize(
    "answer", [flood(200), drip, packed, DEEP, reset, status(500), {"nonce": ["x"]}, {"nonce": "\ud800" * 9}]
)
async def test_a_nonce_that_is_none(guest: HttpGuest, answer: Any) -> None:
    guest.nonce, guest.routes["/nonce"] = "", answer
    tracemalloc.start()
    try:
        with pytest.raises(SandboxLost):
            await read_nonce(Endpoint(guest.url), 1.0)
        assert tracemalloc.get_traced_memory()[1] < 32 * MIB
    finally:
        tracemalloc.stop()
    assert guest.seen[0][2]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("answer", [flood(200), DEEP, {"nonce": 7}])
async def test_a_check_of_the_nonce_is_lost_too(guest: HttpGuest, client: GuestClient, answer: Any) -> None:
    guest.nonce, guest.routes["/nonce"] = "", answer
    with pytest.raises(SandboxLost):
        await client.check_nonce("abcdefgh")


@pytest.mark.parametrize("answer", [flood(200), packed, DEEP, drip])
async def test_reads_end(guest: HttpGuest, answer: Any) -> None:
    guest.routes.update(dict.fromkeys(("/accessibility", "/terminal", "/screenshot", "/execute"), answer))
    async with GuestClient(
        Endpoint(guest.url), retry=Retry((0.0,)), read_timeout_s=1.0, connect_timeout_s=0.2
    ) as client:
        for read in (client.accessibility(1.0), client.terminal(), client.screenshot()):
            with pytest.raises((SandboxLost, GuestRefused)):
                await read
        with contextlib.suppress(SandboxLost):
            assert not (await client.execute(["true"], timeout_s=1.0)).ok


async def test_an_output_within_its_limit_is_whole(guest: HttpGuest, client: GuestClient) -> None:
    guest.routes["/execute"] = command("x" * (MAX_OUTPUT_BYTES - 1000))
    assert len((await client.execute(["true"])).output) == MAX_OUTPUT_BYTES - 1000
    guest.routes["/execute"] = command("x" * MAX_OUTPUT_BYTES)
    with pytest.raises(SandboxLost, match="longer than"):
        await client.execute(["true"])


async def test_no_start_hangs_on_a_screenshot(guest: HttpGuest) -> None:
    async def running() -> None:
        return None

    for answer in (flood(200), packed, DEEP, big_picture()):
        guest.routes["/screenshot"] = answer
        with pytest.raises(SandboxStartFailed, match="no usable screenshot"):
            await wait_ready(
                Endpoint(guest.url),
                (320, 240),
                still_running=running,
                timeout_s=0,
                poll_s=1,
                on_progress=lambda _: None,
            )


async def test_a_blank_screen_is_not_ready(guest: HttpGuest) -> None:
    """A display that is up before the desktop shows black and a pointer; a PNG of that has six kilobytes."""

    async def start(screen: Image.Image) -> None:
        async def running() -> None:
            return None

        buffer = io.BytesIO()
        screen.save(buffer, "PNG")
        guest.routes["/screenshot"] = buffer.getvalue()
        size, options = (1920, 1080), {"timeout_s": 0.0, "poll_s": 1.0}
        await wait_ready(Endpoint(guest.url), size, still_running=running, on_progress=lambda _: None, **options)

    for colour in ("black", "#300a24"):
        screen = Image.new("RGB", (1920, 1080), colour)
        screen.paste(Image.effect_noise((40, 60), 60).convert("RGB"), (960, 540))
        with pytest.raises(SandboxStartFailed, match="blank: one colour covers 99 %"):
            await start(screen)
        screen.paste(Image.effect_noise((1920, 32), 60).convert("RGB"), (0, 0))  # a panel above a plain background
        await start(screen)


async def test_a_picture_longer_than_its_pixels_is_not_kept(guest: HttpGuest) -> None:
    """62 MiB at every step, most of it behind the picture."""
    guest.routes["/screenshot"] = with_chunk(b"teST", bytes(62 * 2**20))
    async with GuestClient(Endpoint(guest.url), retry=Retry(()), screen=(320, 240)) as client:
        with pytest.raises(SandboxLost, match="longer than"):
            await observe(client)
        noise = Image.frombytes("RGBA", (320, 240), os.urandom(320 * 240 * 4))
        buffer = io.BytesIO()
        noise.save(buffer, "PNG", compress_level=0)
        guest.routes["/screenshot"] = buffer.getvalue()
        assert (await observe(client)).width == 320, "no real picture is refused"


def big_picture() -> bytes:
    """Half a megabyte that unpacks to five hundred, as its header declares."""
    small = png()
    return small[:16] + (13300).to_bytes(4, "big") * 2 + small[24:]


async def test_a_picture_of_another_size_is_not_unpacked(guest: HttpGuest) -> None:
    with pytest.raises(ValueError, match=rf"13300×13300.*{MAX_PIXELS}"):
        screenshot_size(big_picture())
    guest.routes["/screenshot"] = png(640, 480)
    for screen, fits in (((640, 480), True), (None, True), ((1920, 1080), False)):
        async with GuestClient(Endpoint(guest.url), retry=Retry(()), screen=screen) as client:
            if fits:
                assert (await observe(client)).width == 640
                continue
            with pytest.raises(SandboxLost, match=r"640×480 pixels, wanted 1920×1080"):
                await observe(client)


def with_chunk(name: bytes, content: bytes = b"") -> bytes:
    """A good picture with one more chunk after its header."""
    good = png()
    chunk = len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")
    return good[:33] + chunk + good[33:]


def test_a_second_header_does_not_count() -> None:
    bigger = (9000).to_bytes(4, "big") * 2 + bytes((8, 2, 0, 0, 0))
    with pytest.raises(ValueError, match="says 320×240 and then 9000×9000"):
        screenshot_size(with_chunk(b"IHDR", bigger))


@pytest.mark.parametrize("name", [b"gAMA", b"iCCP", b"pHYs", b"IHDR", b"fcTL"])
def test_whatever_the_decoder_raises_is_a_word_about_the_picture(name: bytes) -> None:
    with pytest.raises(ValueError, match="does not decode"):
        screenshot_size(with_chunk(name))


async def test_text_that_cannot_be_encoded_becomes_text_that_can(guest: HttpGuest, client: GuestClient) -> None:
    body = b'{"AT": "a\\ud800b \\ud83d\\ude42", "output": "\\uDFFF"}'
    guest.routes["/accessibility"] = guest.routes["/terminal"] = body
    assert await client.accessibility() == "a?b 🙂"
    assert await client.terminal() == "?"
    assert parse_guest_json('{"a": "\\\\ud800"}') == {"a": "\\ud800"}
    assert parse_guest_json(DEEP) is None
    assert parse_guest_json(b"\xff") is None


def recorded(started_at: str, ended_at: str = "1", error: str = "null") -> Handler:
    """A journal whose record says this of the op that is asked about."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        line = (
            f'{MARK}{{"state": "done", "op": "op", "claim": {{}}, "result": {{"status": "ok", "error": {error}, '
            f'"started_at": {started_at}, "ended_at": {ended_at}}}}}'
        )
        return web.json_response(command(line))

    return answer


@pytest.mark.parametrize(
    "record",
    [
        recorded("1" + "0" * 400),
        recorded("-1e999"),
        recorded("NaN"),
        recorded("1", "1e999"),
        recorded("-1e308", "1e308"),
        recorded("[]"),
        recorded("1", "{}"),
    ],
)
async def test_a_spoilt_record_is_in_doubt(guest: HttpGuest, client: GuestClient, record: Handler) -> None:
    guest.routes["/execute"] = record
    result = await asked(client)
    assert (result.status, result.started_at, result.duration_s) == ("in_doubt", None, None)


async def test_a_journal_that_is_no_json_cannot_be_run(guest: HttpGuest, client: GuestClient) -> None:
    for record in (recorded("1" + "0" * 5000), recorded("[" * 5000)):
        guest.routes["/execute"] = record
        with pytest.raises(ActionFailed, match="cannot run the journal"):
            await asked(client)


async def asked(client: GuestClient) -> ActionResult:
    return await perform(client, op_id="op", action="pass", runtime=CANONICAL, patience=Patience(poll_s=0.01))


@pytest.mark.parametrize("error", ["[" * 900 + "]" * 900, '"\\ud800"', "{}"])
async def test_a_strange_error_of_a_record_can_be_written_down(
    guest: HttpGuest, client: GuestClient, error: str
) -> None:
    guest.routes["/execute"] = recorded("1", "2", error)
    json.dumps((await asked(client)).error, ensure_ascii=False).encode()


@pytest.mark.parametrize("entries", ["7", "[7]", "[{}]", "null"])
async def test_a_spoilt_journal_cannot_be_read(guest: HttpGuest, client: GuestClient, entries: str) -> None:
    guest.routes["/execute"] = command(f'{MARK}{{"state": "dump", "entries": {entries}}}')
    with pytest.raises(ActionFailed, match="cannot be read"):
        await read_journal(client)


@pytest.mark.parametrize(
    "answer",
    [
        status(500),
        status(503),
        reset,
        DEEP,
        command(""),
        command("", "Killed", 137),
        command("@@rollbook-probe@@ " + "[" * 5000),
        command("@@rollbook-probe@@ (1"),
        command("@@rollbook-probe@@ [7]"),
    ],
)
async def test_only_a_printed_verdict_says_that_a_runtime_is_missing(
    guest: HttpGuest, client: GuestClient, answer: Any
) -> None:
    guest.routes["/execute"] = answer
    with pytest.raises(SandboxLost):
        await probe_runtime(client, CANONICAL)


async def test_verdicts_of_the_probe(guest: HttpGuest, client: GuestClient) -> None:
    guest.routes["/execute"] = command("noise\n@@rollbook-probe@@ []\n")
    assert await probe_runtime(client, CANONICAL) == []
    guest.routes["/execute"] = command('@@rollbook-probe@@ ["python module pyautogui: ImportError"]')
    assert await probe_runtime(client, CANONICAL) == ["python module pyautogui: ImportError"]
    guest.routes["/execute"] = command("@@rollbook-probe@@ [null]")
    assert await probe_runtime(client, CANONICAL) == ["command 'python' in the guest"]


def test_a_gateway_header_wins() -> None:
    headers = guest_http(Endpoint("http://guest", {"Accept-Encoding": "br", "X-Sandbox": "1"})).headers
    assert (headers["accept-encoding"], headers["x-sandbox"]) == ("br", "1")
