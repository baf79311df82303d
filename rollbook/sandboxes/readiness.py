"""When is a desktop ready? When its guest server hands out a real screenshot of the right size."""

import asyncio
import io
import struct
import time
from collections.abc import Awaitable, Callable

import httpx
from PIL import Image

from rollbook.errors import SandboxStartFailed
from rollbook.sandboxes.guest_http import ask_guest, guest_http
from rollbook.sandboxes.provider import Endpoint, Tick

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
MIN_SCREENSHOT_BYTES = 1024
"""An all-black 1920×1080 PNG has about 6 KB; anything below 1 KB is no picture of a desktop."""

PROBE_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
"""Upstream contract §6.2: connect 5 s, read 10 s."""
PROBE_TOTAL_S = 15.0


MAX_SCREENSHOT_BYTES = 64 * 1024 * 1024
MAX_PIXELS = 7680 * 4320
"""The biggest screen that a contract may ask for; a bigger picture is not unpacked."""


def screenshot_size(png: bytes, screen: tuple[int, int] | None = None) -> tuple[int, int]:
    """Width and height of a screenshot that decodes completely; of exactly `screen` pixels, when that is given.

    Raises ValueError that says what is wrong. The size is read in the header first: half a megabyte can unpack to one
    gigabyte.
    """
    if not png.startswith(PNG_MAGIC):
        raise ValueError(f"not a PNG: {len(png)} bytes starting with {png[:8]!r}")
    if len(png) < MIN_SCREENSHOT_BYTES:
        raise ValueError(f"a PNG of only {len(png)} bytes cannot be a desktop")
    width, height = declared_size(png)
    if screen is not None and (width, height) != screen:
        raise ValueError(f"the screen is {width}×{height} pixels, wanted {screen[0]}×{screen[1]}")
    if width * height > MAX_PIXELS:
        raise ValueError(f"a picture of {width}×{height} pixels is no screen; the biggest has {MAX_PIXELS}")
    _decode(png, (width, height))
    return width, height


def _decode(png: bytes, size: tuple[int, int]) -> None:
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.size != size:  # a second header, which the decoder would follow
                raise ValueError(f"it says {size[0]}×{size[1]} and then {image.size[0]}×{image.size[1]} pixels")
            image.load()
    except Exception as error:  # whatever a crafted file brings the decoder to raise
        raise ValueError(f"a PNG that does not decode: {type(error).__name__}: {error}") from error


def declared_size(png: bytes) -> tuple[int, int]:
    """Width and height as the header of a PNG says."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


async def wait_ready(
    endpoint: Endpoint,
    screen: tuple[int, int],
    *,
    still_running: Callable[[], Awaitable[None]],
    timeout_s: float,
    poll_s: float,
    on_tick: Tick,
) -> None:
    """Poll `GET /screenshot` until it is a real picture; `still_running` raises when waiting has become pointless.

    Raises SandboxStartFailed with the last reason after `timeout_s`.
    """
    started = time.monotonic()
    async with guest_http(endpoint, timeout=PROBE_TIMEOUT) as client:
        while True:
            problem = await _look(client, screen)
            if problem is None:
                return
            await still_running()
            waited = time.monotonic() - started
            if waited >= timeout_s:
                raise SandboxStartFailed(f"no usable screenshot within {timeout_s:g} s; last try: {problem}")
            on_tick(f"waiting for the first screenshot: {problem}")
            await asyncio.sleep(min(poll_s, max(0.0, timeout_s - waited)))


async def _look(client: httpx.AsyncClient, screen: tuple[int, int]) -> str | None:
    try:
        status, png = await ask_guest(
            client, "GET", "/screenshot", max_bytes=MAX_SCREENSHOT_BYTES, total_s=PROBE_TOTAL_S
        )
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    if status != 200:
        return f"HTTP {status}: {png[:200].decode(errors='replace').strip()}"
    try:
        await asyncio.to_thread(screenshot_size, png, screen)
    except ValueError as error:
        return str(error)
    return None
