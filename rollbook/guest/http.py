"""HTTP to guests: bounded requests, the identity of a guest's boot, and readiness.

The agent owns the guest, so every answer may be hostile: endless, slow, packed, or nested without end.
"""

import asyncio
import hashlib
import io
import json
import re
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import httpx
from PIL import Image

from rollbook.errors import SandboxLost, SandboxStartFailed
from rollbook.redaction import redact_head

GUEST_PORT = 5000
CHROMIUM_PORT = 9222
VLC_PORT = 8080
SERVICE_PORTS = (GUEST_PORT, CHROMIUM_PORT, VLC_PORT)
"""Guest server, Chromium's debugger, VLC's HTTP interface: fixed by OSWorld's tasks."""


TIMED_OUT = re.compile(r"\btimed out after [\d.]+ seconds\Z")
"""End of the message of a guest server, stock or ours, that killed a command at its limit. The words before it may
quote the command, and so anything."""

OnProgress = Callable[[str], None]
"""Called often during long waits with a short note about progress; activities heartbeat in it."""


@dataclass(frozen=True)
class Endpoint:
    """The address of one port of a guest: an absolute URL, and the headers that its gateway requires."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


def guest_http(
    endpoint: Endpoint,
    *,
    timeout: httpx.Timeout | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """Return a client whose paths are relative to the endpoint. Use it as a context manager or close it."""
    return httpx.AsyncClient(
        base_url=endpoint.url,
        headers={"Accept-Encoding": "identity", **endpoint.headers},
        timeout=timeout or httpx.Timeout(15.0, connect=5.0),
        verify=_tls() if endpoint.url.startswith("https:") else False,
        trust_env=False,
        transport=transport,
    )


async def ask_guest(
    client: httpx.AsyncClient, method: str, path: str, *, max_bytes: int, total_s: float, **arguments: Any
) -> tuple[int, bytes]:
    """Status and body of one request, sent once; `total_s` seconds for the whole of it.

    Raises httpx.HTTPError without an answer, also for one that is longer than `max_bytes`, late, or packed.
    """
    try:
        async with asyncio.timeout(total_s):  # httpx's own clock restarts with every byte
            async with client.stream(method, path, **arguments) as reply:
                return reply.status_code, await _bounded(reply, max_bytes)
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no whole answer within {total_s:g} s") from error
    except httpx.InvalidURL as error:
        raise httpx.RemoteProtocolError(f"the answer redirects to an invalid URL: {error}") from error


def parse_guest_json(reply: str | bytes) -> Any:
    """The JSON value of a reply; None when it is not JSON or is nested too deep. Unpaired surrogates become `?`."""
    try:
        text = reply if isinstance(reply, str) else reply.decode()
        value = json.loads(text)
        if "\\ud" in text.lower():  # an unpaired surrogate would fail later, in any encoder
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
        return value
    except (ValueError, RecursionError):
        return None


async def _bounded(reply: httpx.Response, max_bytes: int) -> bytes:
    if (packing := reply.headers.get("Content-Encoding", "identity")) != "identity":
        raise httpx.DecodingError(f"unexpected Content-Encoding {packing:.20}")
    content = bytearray()
    async for chunk in reply.aiter_bytes():
        content += chunk
        if len(content) > max_bytes:
            raise httpx.ReadError(f"the guest's answer is longer than {max_bytes} bytes")
    return bytes(content)


@cache
def _tls() -> ssl.SSLContext:
    """Read the certificates once: it takes tens of milliseconds."""
    return ssl.create_default_context()


_BOOT_IDENTITY = (
    "cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/hostname; sed 's/.*) //' /proc/1/stat | cut -d' ' -f20"
)
"""Shell for guests without `/nonce`: the kernel's boot, the host name (Docker: the container), and the start time of
process 1. Desktops restored from one memory snapshot may share all three."""


_MAX_REPLY_BYTES = 4096


async def read_nonce(endpoint: Endpoint, timeout_s: float) -> str:
    """The boot identity of the guest behind a port-5000 endpoint.

    Our image answers `GET /nonce`. A stock OSWorld guest is asked through `POST /execute`, which only reads.
    Raises SandboxLost when nothing usable answers within `timeout_s` seconds per request.
    """
    try:
        async with guest_http(endpoint, timeout=httpx.Timeout(timeout_s)) as client:
            status, reply = await _ask(client, "GET", "/nonce", timeout_s)
            if status in (404, 405):
                return await _boot_identity(client, timeout_s)
    except httpx.HTTPError as error:
        raise SandboxLost(f"the guest server does not answer: {type(error).__name__}: {error}") from error
    if status != 200 or not (nonce := _nonce_of(reply)):
        raise SandboxLost(f"the guest server answered GET /nonce with HTTP {status} and no nonce")
    return nonce


async def _boot_identity(client: httpx.AsyncClient, timeout_s: float) -> str:
    question = {"command": ["sh", "-c", _BOOT_IDENTITY], "shell": False}
    status, reply = await _ask(client, "POST", "/execute", timeout_s, json=question)
    answer = parse_guest_json(reply) if status == 200 else None
    output = answer.get("output") if isinstance(answer, dict) else None
    if not isinstance(output, str) or len(output.split()) != 3:
        raise SandboxLost(f"the guest server answered POST /execute with HTTP {status} and no boot identity")
    return "boot-" + hashlib.sha256(output.encode()).hexdigest()[:32]


async def _ask(
    client: httpx.AsyncClient, method: str, path: str, timeout_s: float, **arguments: Any
) -> tuple[int, bytes]:
    return await ask_guest(client, method, path, max_bytes=_MAX_REPLY_BYTES, total_s=timeout_s, **arguments)


def _nonce_of(reply: bytes) -> str:
    """The nonce in a reply: `{"nonce": "…"}` or the bare text; empty when it is neither."""
    answer = parse_guest_json(reply)
    value = answer.get("nonce") if isinstance(answer, dict) else reply.decode(errors="replace").strip().strip('"')
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.:-]{8,200}", value) else ""


PROBE_TRIES = 3
PROBE_PAUSE_S = 2.0


async def guest_trouble(endpoint: Endpoint, nonce: str, timeout_s: float = 15.0) -> str:
    """The first thing that a guest server fails in and each sound one can do, in words; empty when it is sound.

    Asked three times before it is believed: a busy host is slow.
    """
    trouble = ""
    for number in range(PROBE_TRIES):
        if number:
            await asyncio.sleep(PROBE_PAUSE_S)
        try:
            trouble = await _trouble(endpoint, nonce, timeout_s)
        except (httpx.HTTPError, SandboxLost) as error:
            trouble = f"its guest server does not answer: {type(error).__name__}: {error}"
        if not trouble:
            return ""
    return trouble


Control = Literal["", "passed", "refused", "unanswered"]
"""The end of the same kind of request about a known file or a trivial command, made right after one that failed: it was
not made; the guest can do it, so that the failure is a fact about what was asked for; the guest answers and cannot; it
does not answer."""

_TRUE: dict[str, Any] = {"command": ["true"], "shell": False}
KNOWN_FILE = "/etc/hostname"

CONTROLS: Mapping[str, dict[str, Any]] = {
    "/execute": {"json": _TRUE},
    "/setup/execute": {"json": _TRUE},
    "/setup/execute_with_verification": {"json": _TRUE | {"verification": {}}},
    "/run_python": {"json": {"code": "pass"}},
    "/run_bash_script": {"json": {"script": "true", "timeout": 30}},
    "/file": {"data": {"file_path": KNOWN_FILE}},
}
"""Per route about one file or one command: the same request about something that every sound guest has."""


async def control_exchange(endpoint: Endpoint, path: str, nonce: str, timeout_s: float = 30.0) -> Control:
    """Ask the guest with this `nonce` for a known file or a trivial command over the route `path` of `CONTROLS`."""
    try:
        if await read_nonce(endpoint, timeout_s) != nonce:
            return "unanswered"
        async with guest_http(endpoint, timeout=httpx.Timeout(timeout_s)) as client:
            status, reply = await _ask(client, "POST", path, timeout_s, **CONTROLS[path])
    except (httpx.HTTPError, SandboxLost):
        return "unanswered"
    if status != 200:
        return "refused"
    if path == "/file":
        return "passed"
    answer = parse_guest_json(reply)
    codes = [answer.get(name) for name in ("returncode", "return_code")] if isinstance(answer, dict) else []
    return "passed" if 0 in codes else "refused"


async def _trouble(endpoint: Endpoint, nonce: str, timeout_s: float) -> str:
    if (answered := await read_nonce(endpoint, timeout_s)) != nonce:
        return f"another boot of the guest answers: {redact_head(answered, 60)} instead of {nonce:.60}"
    for path, task in (("/execute", "run `true`"), ("/file", f"read {KNOWN_FILE}")):
        if (control := await control_exchange(endpoint, path, nonce, timeout_s)) != "passed":
            return f"its guest server cannot {task}: {control}"
    async with guest_http(endpoint, timeout=httpx.Timeout(timeout_s)) as client:
        size = max_screenshot_bytes(None)
        status, png = await ask_guest(client, "GET", "/screenshot", max_bytes=size, total_s=timeout_s)
        if status != 200 or not png.startswith(PNG_MAGIC):
            return f"its guest server shows no screen: HTTP {status} {redact_head(png, 200)}"
    return ""


PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
MIN_SCREENSHOT_BYTES = 1024
"""An all-black 1920×1080 PNG has about 6 KB; anything below 1 KB cannot show a desktop."""

PROBE_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
"""As upstream: connect 5 s, read 10 s."""
PROBE_TOTAL_S = 15.0


MAX_PIXELS = 7680 * 4320
"""The biggest screen that a contract may ask for; a bigger picture is not unpacked."""
BLANK_SHARE = 0.99
"""A screen of which one colour covers more is not drawn yet; a bare desktop's panel alone covers two hundredths."""


def max_screenshot_bytes(screen: tuple[int, int] | None) -> int:
    """Longest PNG of a screen, of the biggest one if None: four bytes a pixel, which no PNG needs to exceed."""
    width, height = screen or (MAX_PIXELS, 1)
    return 4 * width * height + 64 * 1024


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
        raise ValueError(f"a picture of {width}×{height} pixels is not a screen; the biggest has {MAX_PIXELS}")
    _decode(png, (width, height))
    return width, height


def require_content(png: bytes) -> None:
    """Raises ValueError for a screenshot of one colour only, such as that of a screen before it is drawn."""
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        sample = image.convert("RGB").resize(
            (max(1, image.width // 4), max(1, image.height // 4)), Image.Resampling.NEAREST
        )
    pixels = sample.width * sample.height
    most = max(count for count, _ in sample.getcolors(pixels) or [(0, None)])
    if most > BLANK_SHARE * pixels:
        raise ValueError(f"the screen is blank: one colour covers {100 * most // pixels} % of it")


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
    on_progress: OnProgress,
) -> None:
    """Poll `GET /screenshot` until it shows a desktop; `still_running` raises when waiting has become pointless.

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
            on_progress(f"waiting for the first screenshot: {problem}")
            await asyncio.sleep(min(poll_s, max(0.0, timeout_s - waited)))


async def _look(client: httpx.AsyncClient, screen: tuple[int, int]) -> str | None:
    try:
        status, png = await ask_guest(
            client, "GET", "/screenshot", max_bytes=max_screenshot_bytes(screen), total_s=PROBE_TOTAL_S
        )
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    if status != 200:
        return f"HTTP {status}: {redact_head(png, 200).strip()}"
    try:
        await asyncio.to_thread(screenshot_size, png, screen)
        await asyncio.to_thread(require_content, png)
    except ValueError as error:
        return str(error)
    return None
