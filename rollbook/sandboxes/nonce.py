"""The identity of a guest's boot: another one means another desktop answers in its place (DESIGN §2)."""

import hashlib
import json
import re
from typing import Any

import httpx

from rollbook.errors import SandboxLost
from rollbook.sandboxes.forwarder_routes import EndpointLike

_BOOT_IDENTITY = (
    "cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/hostname; sed 's/.*) //' /proc/1/stat | cut -d' ' -f20"
)
"""Shell for guests without `/nonce`: the kernel's boot, the host name (Docker: the container), and the start time of
process 1. Desktops restored from one memory snapshot may share all three."""


async def read_nonce(endpoint: EndpointLike, timeout_s: float) -> str:
    """The boot identity of the guest behind a port-5000 endpoint.

    Our image answers `GET /nonce`. A stock OSWorld guest is asked through `POST /execute`, which only reads.
    Raises SandboxLost when nothing usable answers within `timeout_s` seconds per request.
    """
    url = endpoint.url.rstrip("/")
    try:
        async with httpx.AsyncClient(
            headers=dict(endpoint.headers), timeout=httpx.Timeout(timeout_s), trust_env=False
        ) as client:
            reply = await client.get(f"{url}/nonce")
            if reply.status_code in (404, 405):
                return await _boot_identity(client, url)
    except httpx.HTTPError as error:
        raise SandboxLost(f"the guest server does not answer: {type(error).__name__}: {error}") from error
    if reply.status_code != 200 or not (nonce := _nonce_of(reply.text)):
        raise SandboxLost(f"the guest server answered GET /nonce with HTTP {reply.status_code} and no nonce")
    return nonce


async def _boot_identity(client: httpx.AsyncClient, url: str) -> str:
    reply = await client.post(f"{url}/execute", json={"command": ["sh", "-c", _BOOT_IDENTITY], "shell": False})
    answer = _json(reply.text) if reply.status_code == 200 else None
    output = answer.get("output") if isinstance(answer, dict) else None
    if not isinstance(output, str) or len(output.split()) != 3:
        raise SandboxLost(f"the guest server answered POST /execute with HTTP {reply.status_code} and no boot identity")
    return "boot-" + hashlib.sha256(output.encode()).hexdigest()[:32]


def _nonce_of(text: str) -> str:
    """The nonce in a reply: `{"nonce": "…"}` or the bare text; empty when it is neither."""
    answer = _json(text)
    value = answer.get("nonce") if isinstance(answer, dict) else text.strip().strip('"')
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.:-]{8,200}", value) else ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
