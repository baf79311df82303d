"""When is a desktop ready? When its guest server hands out a real screenshot of the right size."""

import asyncio
import io
import struct
import time
from collections.abc import Awaitable, Callable

import httpx
from PIL import Image, UnidentifiedImageError

from rollbook.errors import SandboxStartFailed
from rollbook.sandboxes.guest_http import guest_http
from rollbook.sandboxes.provider import Endpoint, Tick

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
MIN_SCREENSHOT_BYTES = 1024
"""An all-black 1920×1080 PNG has about 6 KB; anything below 1 KB is no picture of a desktop."""

PROBE_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
"""Upstream contract §6.2: connect 5 s, read 10 s."""


def screenshot_size(png: bytes) -> tuple[int, int]:
    """Width and height of a screenshot that decodes completely. Raises ValueError that says what is wrong."""
    if not png.startswith(PNG_MAGIC):
        raise ValueError(f"not a PNG: {len(png)} bytes starting with {png[:8]!r}")
    if len(png) < MIN_SCREENSHOT_BYTES:
        raise ValueError(f"a PNG of only {len(png)} bytes cannot be a desktop")
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            image.load()
            return image.size
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"a PNG that does not decode: {error}") from error


def declared_size(png: bytes) -> tuple[int, int]:
    """Width and height as the header of a PNG says; for pictures that were checked before."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def check_screen(png: bytes, screen: tuple[int, int]) -> None:
    """Raises ValueError unless `png` is a screenshot of exactly `screen` pixels."""
    size = screenshot_size(png)
    if size != screen:
        raise ValueError(f"the screen is {size[0]}×{size[1]} pixels, wanted {screen[0]}×{screen[1]}")


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
        reply = await client.get("/screenshot")
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    if reply.status_code != 200:
        return f"HTTP {reply.status_code}: {reply.text[:200].strip()}"
    try:
        await asyncio.to_thread(check_screen, reply.content, screen)
    except ValueError as error:
        return str(error)
    return None
