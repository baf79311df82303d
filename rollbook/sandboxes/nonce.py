"""The identity of a guest's boot: another one means another desktop answers in its place (DESIGN §2)."""

import hashlib
import re
from typing import Any

import httpx

from rollbook.errors import SandboxLost
from rollbook.sandboxes.forwarder.routes import EndpointLike
from rollbook.sandboxes.guest_http import ask_guest, guest_http, parse_guest_json

_BOOT_IDENTITY = (
    "cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/hostname; sed 's/.*) //' /proc/1/stat | cut -d' ' -f20"
)
"""Shell for guests without `/nonce`: the kernel's boot, the host name (Docker: the container), and the start time of
process 1. Desktops restored from one memory snapshot may share all three."""


_MAX_REPLY_BYTES = 4096


async def read_nonce(endpoint: EndpointLike, timeout_s: float) -> str:
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
