"""HTTP client of the guest server on port 5000: reads are repeated, commands are sent once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import httpx

from rollbook.errors import ActionFailed, SandboxLost
from rollbook.guest.http import (
    TIMED_OUT,
    Endpoint,
    ask_guest,
    guest_http,
    max_screenshot_bytes,
    parse_guest_json,
    read_nonce,
    screenshot_size,
)
from rollbook.redaction import redact_head, redact_tail

T = TypeVar("T")

_MIB = 1024 * 1024
MAX_TREE_BYTES = 32 * _MIB
"""The guest is hostile: an answer longer than its route's limit is broken off and counts as none."""
MAX_TERMINAL_BYTES = 4 * _MIB
MAX_OUTPUT_BYTES = 16 * _MIB
"""Of a command, both outputs as JSON."""
MAX_WORDS_BYTES = 64 * 1024
"""Of answers that only say yes or no."""

MAX_ERROR_CHARS = 4000
"""Errors go into logs and into Temporal's history."""

GATEWAY_STATUS = frozenset({502, 503, 504})
"""Statuses of a gateway in front of the guest, not of the guest: it was not reached."""


@dataclass(frozen=True)
class ExecuteResult:
    """Answer to `POST /execute`."""

    ok: bool
    """True: the command ran to its end. False: the guest server refused it, or stopped it after 120 s."""
    output: str
    error: str
    returncode: int | None
    timed_out: bool = False
    """The guest server killed the command at its limit."""


@dataclass(frozen=True)
class Retry:
    """Repetition of reads while the guest does not answer: the delays between the tries, in seconds."""

    delays_s: tuple[float, ...] = (0.25, 1.0, 2.0, 4.0)


class GuestRefused(ActionFailed):
    """The guest is alive and answered a read with an error, again and again."""


class GuestReplaced(SandboxLost):
    """The guest that answers is another one, or another boot of it."""


class NoScreen(SandboxLost):
    """The guest server answers, but shows no screen, again and again."""

    reason: ClassVar[str] = "desktop_broken"


class GuestClient:
    """One desktop's guest server. Use as `async with GuestClient(endpoint) as guest:`.

    Reads are repeated a few times. What remains unanswered is SandboxLost; an error that the living guest insists on
    is GuestRefused. Nothing else is repeated here: `execute` and `upload` try once.

    `nonce` is the boot identity recorded when the desktop started. A port of a desktop that died may be given to the
    next one: with a nonce, actions and observations make sure that the right guest answers.

    `screen` is the width and height in pixels that the contract promises; a screenshot of another size is none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        nonce: str | None = None,
        screen: tuple[int, int] | None = None,
        retry: Retry | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 15.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.nonce = nonce
        self.screen = screen
        self._delays_s = (retry or Retry()).delays_s
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._http = guest_http(endpoint, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def screenshot(self) -> bytes:
        """The screen as a PNG that decodes. A guest that is alive but shows nothing is lost as well."""

        async def read() -> bytes:
            png = await self._get("/screenshot", self._read_timeout_s, max_screenshot_bytes(self.screen))
            try:
                await asyncio.to_thread(screenshot_size, png, self.screen)
            except ValueError as error:
                raise GuestRefused(f"GET /screenshot: {error}") from error
            return png

        try:
            return await self._repeat(read, self._delays_s)
        except GuestRefused as error:
            raise NoScreen(f"the guest server answers, but shows no screen: {error}") from error

    async def accessibility(self, timeout_s: float = 60.0) -> str:
        """The accessibility tree as XML; a big spreadsheet takes several seconds."""
        tree = await self._read_json("/accessibility", timeout_s, "AT", MAX_TREE_BYTES)
        if not isinstance(tree, str):
            raise GuestRefused(f"GET /accessibility: AT is {type(tree).__name__}, not text")
        return tree

    async def terminal(self) -> str | None:
        """Text of the focused terminal; None when no terminal is in front."""
        text = await self._read_json("/terminal", self._read_timeout_s, "output", MAX_TERMINAL_BYTES)
        if text is not None and not isinstance(text, str):
            raise GuestRefused(f"GET /terminal: output is {type(text).__name__}, not text")
        return text

    async def execute(
        self, command: list[str] | str, *, shell: bool = False, timeout_s: float = 130.0
    ) -> ExecuteResult:
        """Run a command in the guest, once. The guest itself stops it after 120 s.

        SandboxLost means that no answer came; whether the command ran is then unknown.
        """
        body = {"command": command, "shell": shell}
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        status, reply = await self._send(
            "POST", "/execute", timeout_s, MAX_OUTPUT_BYTES, content=content, headers=headers
        )
        answer = parse_guest_json(reply)
        if not isinstance(answer, dict):
            return ExecuteResult(False, "", f"HTTP {status}: {redact_head(reply, 500)}", None)
        if status != 200:
            why = _text(answer.get("message")) or _text(answer.get("error")) or f"HTTP {status} without a reason"
            return ExecuteResult(
                False, "", redact_tail(why, MAX_ERROR_CHARS), None, timed_out=bool(TIMED_OUT.search(why))
            )
        code = answer.get("returncode")
        return ExecuteResult(
            ok=True,
            output=_text(answer.get("output")),
            error=_text(answer.get("error")),
            returncode=code if isinstance(code, int) else None,
        )

    async def upload(self, path: str, content: bytes, timeout_s: float = 60.0) -> None:
        """Write a file in the guest, once. Raises SandboxLost without an answer, GuestRefused when it says no."""
        status, reply = await self._send(
            "POST",
            "/setup/upload",
            timeout_s,
            MAX_WORDS_BYTES,
            data={"file_path": path},
            files={"file_data": ("file", content, "application/octet-stream")},
        )
        if status != 200:
            raise GuestRefused(f"upload of {path}: HTTP {status}: {redact_head(reply, 500)}")

    async def check_nonce(self, expected: str) -> None:
        """Raises GuestReplaced when the guest is not the one that was started, SandboxLost when it does not answer."""
        status, reply = await self._send("GET", "/nonce", self._read_timeout_s, MAX_WORDS_BYTES)
        answer = parse_guest_json(reply)
        nonce = answer.get("nonce") if status == 200 and isinstance(answer, dict) else None
        if not isinstance(nonce, str):  # a guest of another make
            nonce = await read_nonce(self.endpoint, self._read_timeout_s)
        if nonce != expected:
            raise GuestReplaced(
                f"another guest answers: boot nonce {redact_head(repr(nonce), 200)}, at the start it was {expected!r}"
            )

    async def verify(self) -> None:
        """`check_nonce` with the client's own nonce; nothing without one."""
        if self.nonce is not None:
            await self.check_nonce(self.nonce)

    async def _read_json(self, path: str, timeout_s: float, key: str, max_bytes: int) -> Any:
        async def read() -> Any:
            answer = parse_guest_json(await self._get(path, timeout_s, max_bytes))
            if not isinstance(answer, dict) or key not in answer:
                raise GuestRefused(f"GET {path}: the answer has no {key!r}")
            return answer[key]

        return await self._repeat(read, self._delays_s[:1])

    async def _get(self, path: str, timeout_s: float, max_bytes: int) -> bytes:
        status, reply = await self._send("GET", path, timeout_s, max_bytes)
        if status != 200:
            raise GuestRefused(f"GET {path}: HTTP {status}: {redact_head(reply, 300)}")
        return reply

    async def _repeat(self, read: Callable[[], Awaitable[T]], delays_s: tuple[float, ...]) -> T:
        for delay in delays_s:
            try:
                return await read()
            except (SandboxLost, GuestRefused):
                await asyncio.sleep(delay)
        return await read()

    async def _send(
        self, method: str, path: str, timeout_s: float, max_bytes: int, **arguments: Any
    ) -> tuple[int, bytes]:
        arguments["timeout"] = httpx.Timeout(timeout_s, connect=self._connect_timeout_s)
        total_s = timeout_s + self._connect_timeout_s
        try:
            status, content = await ask_guest(
                self._http, method, path, max_bytes=max_bytes, total_s=total_s, **arguments
            )
        except httpx.HTTPError as error:
            raise SandboxLost(f"{method} {path}: {type(error).__name__}: {error}") from error
        if status in GATEWAY_STATUS:
            raise SandboxLost(f"{method} {path}: HTTP {status} from the gateway")
        return status, content


def _text(value: Any) -> str:
    """The value when it is text; anything else is none."""
    return value if isinstance(value, str) else ""
