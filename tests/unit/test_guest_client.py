"""The guest client: what it repeats, what it believes, and which error says what."""

import io
import json

import httpx
import pytest
from PIL import Image

from rollbook.desktop.client import GuestClient, GuestRefused, GuestReplaced, Retry
from rollbook.desktop.journal import perform
from rollbook.desktop.observe import observe
from rollbook.desktop.runtimes import CANONICAL
from rollbook.errors import SandboxLost
from rollbook.guest.http import Endpoint, screenshot_size
from tests.doubles.local_guest import LocalGuest


def png(width: int = 320, height: int = 240) -> bytes:
    """A picture that does not compress away."""
    buffer = io.BytesIO()
    Image.effect_noise((width, height), 60).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def text(key: str, value: object) -> tuple[int, bytes]:
    return 200, json.dumps({key: value}).encode()


async def test_a_screenshot_is_checked() -> None:
    good = png()
    guest = LocalGuest(images=[(200, good)])
    async with guest.client() as client:
        assert await client.screenshot() == good
    assert guest.requests == 1


@pytest.mark.parametrize(
    "bad",
    [
        (500, b"boom"),
        (200, b""),
        (200, b"<html>proxy error</html>"),
        (200, png()[:2000]),
        (200, b"\x89PNG\r\n\x1a\n" + b"\0" * 5000),
    ],
)
async def test_a_bad_screenshot_is_asked_for_again(bad: tuple[int, bytes]) -> None:
    guest = LocalGuest(images=[bad, bad, (200, png())])
    async with guest.client() as client:
        assert screenshot_size(await client.screenshot()) == (320, 240)


async def test_a_guest_that_never_shows_a_screen_is_lost() -> None:
    guest = LocalGuest(images=[(500, b"X is gone")])
    async with guest.client() as client:
        with pytest.raises(SandboxLost, match=r"shows no screen.*X is gone"):
            await client.screenshot()
    assert guest.requests == 3


async def test_reads_outlast_a_short_silence() -> None:
    guest = LocalGuest(images=[(200, png())], refuse_requests=1, lose_replies=1)
    async with guest.client() as client:
        await client.screenshot()
    assert guest.requests == 3


async def test_a_silent_guest_is_lost() -> None:
    guest = LocalGuest(dead=True)
    async with guest.client() as client:
        with pytest.raises(SandboxLost, match="ConnectError"):
            await client.screenshot()
    assert guest.requests == 3


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_gateway_that_does_not_reach_the_guest_is_silence(status: int) -> None:
    guest = LocalGuest(answers={"/execute": (status, b"upstream error")})
    async with guest.client() as client:
        with pytest.raises(SandboxLost, match="gateway"):
            await client.execute(["true"])


async def test_execute_is_tried_once() -> None:
    guest = LocalGuest(lose_replies=1)
    async with guest.client() as client:
        with pytest.raises(SandboxLost):
            await client.execute(["true"])
    assert guest.requests == 1


async def test_execute_reports_what_the_guest_said() -> None:
    async with LocalGuest().client() as client:
        done = await client.execute(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done.ok, done.output, done.error, done.returncode) == (True, "out\n", "err\n", 3)
        missing = await client.execute(["/nowhere/command"])
        assert (missing.ok, missing.returncode) == (False, None)
        assert "/nowhere/command" in missing.error


async def test_accessibility_and_terminal() -> None:
    guest = LocalGuest(answers={"/accessibility": text("AT", "<desktop-frame/>"), "/terminal": text("output", None)})
    async with guest.client() as client:
        assert await client.accessibility() == "<desktop-frame/>"
        assert await client.terminal() is None
        guest.answers["/terminal"] = text("output", "$ ls")
        assert await client.terminal() == "$ ls"


async def test_an_answer_without_its_field_is_refused_not_empty() -> None:
    guest = LocalGuest(answers={"/accessibility": text("error", "no bus"), "/terminal": (200, b"not json")})
    async with guest.client() as client:
        with pytest.raises(GuestRefused, match="AT"):
            await client.accessibility()
        with pytest.raises(GuestRefused, match="output"):
            await client.terminal()


async def test_an_observation_takes_what_was_asked_for() -> None:
    guest = LocalGuest(images=[(200, png())], answers={"/accessibility": text("AT", "<t/>")})
    async with guest.client() as client:
        plain = await observe(client)
        assert (plain.width, plain.height, plain.accessibility_tree, plain.terminal) == (320, 240, None, None)
        assert guest.requests == 1
        full = await observe(client, a11y=True, terminal=True)
    assert full.accessibility_tree == "<t/>"
    assert full.terminal is None
    assert list(full.refused) == ["terminal"]


async def test_an_observation_of_a_dead_guest_is_no_observation() -> None:
    guest = LocalGuest(images=[(200, png())])
    async with guest.client() as client:
        await observe(client)
        guest.dead = True
        with pytest.raises(SandboxLost):
            await observe(client, a11y=True)


async def test_gateway_headers_travel_with_every_request() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["x-sandbox"])
        return httpx.Response(200, content=png())

    endpoint = Endpoint("http://gateway", {"X-Sandbox": "abc"})
    async with GuestClient(endpoint, retry=Retry(()), transport=httpx.MockTransport(answer)) as client:
        await client.screenshot()
    assert seen == ["abc"]


def test_the_screen_must_have_the_declared_size() -> None:
    screenshot_size(png(), (320, 240))
    with pytest.raises(ValueError, match=r"320×240 pixels, wanted 1920×1080"):
        screenshot_size(png(), (1920, 1080))


async def test_a_guest_without_a_nonce_route_is_asked_in_another_way() -> None:
    """Our own route is not there: the stock guest's boot is read through /execute, over a connection of its own."""
    guest = LocalGuest(dead=True, answers={"/nonce": (404, b"{}")})
    async with guest.client() as client:
        with pytest.raises(SandboxLost):
            await client.check_nonce("abc")


async def test_an_action_is_not_sent_to_another_guest() -> None:
    guest = LocalGuest(answers={"/nonce": text("nonce", "second-boot")})
    async with GuestClient(Endpoint("http://guest"), nonce="first-boot", transport=guest) as client:
        with pytest.raises(GuestReplaced, match="second-boot"):
            await perform(client, op_id="op", action="pass", runtime=CANONICAL)
    assert guest.requests == 1


async def test_an_observation_of_another_guest_is_none() -> None:
    guest = LocalGuest(images=[(200, png())], answers={"/nonce": text("nonce", "second-boot")})
    async with GuestClient(Endpoint("http://guest"), nonce="first-boot", transport=guest) as client:
        with pytest.raises(GuestReplaced):
            await observe(client)
        client.nonce = "second-boot"
        await observe(client)
