"""Running the desktop image by hand, for tests of the image itself (the provider has tests of its own)."""

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import docker
import httpx
from docker.models.containers import Container
from PIL import Image

from rollbook.sandboxes.provider import LABEL_DEPLOYMENT

FLAGS: dict[str, Any] = {
    "security_opt": ["no-new-privileges"],
    "shm_size": "512m",
    "mem_limit": "2g",
    "pids_limit": 512,
    "nano_cpus": 2_000_000_000,
    "dns": ["127.0.0.1"],
}
"""Set by providers, too."""


class Desktop:
    """A running container of the image and a client of its guest server."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.http = httpx.AsyncClient(timeout=130.0, trust_env=False)

    async def connect(self) -> None:
        """Find the published ports (they change with a restart) and wait for the first screenshot."""
        deadline = time.monotonic() + 60
        while True:
            await asyncio.to_thread(self.container.reload)
            assert self.container.status in ("created", "running"), self.container.logs().decode()
            ports = self.container.attrs["NetworkSettings"]["Ports"]
            if bindings := ports.get("5000/tcp"):
                self.http.base_url = httpx.URL(f"http://127.0.0.1:{bindings[0]['HostPort']}")
                try:
                    if (await self.http.get("/screenshot")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
            assert time.monotonic() < deadline, self.container.logs().decode()
            await asyncio.sleep(0.05)

    def port(self, number: int) -> str:
        return str(self.container.attrs["NetworkSettings"]["Ports"][f"{number}/tcp"][0]["HostPort"])

    async def execute(self, command: str | list[str]) -> dict[str, Any]:
        reply = await self.http.post("/execute", json={"command": command, "shell": isinstance(command, str)})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def output(self, command: str | list[str]) -> str:
        return str((await self.execute(command))["output"])

    async def screenshot(self) -> Image.Image:
        reply = await self.http.get("/screenshot")
        assert reply.headers["content-type"] == "image/png"
        return Image.open(io.BytesIO(reply.content)).convert("RGB")

    async def terminal(self) -> str:
        reply = await self.http.get("/terminal")
        assert reply.json()["status"] == "success"
        return reply.json()["output"] or ""


async def eventually(ask: Callable[[], Awaitable[Any]], limit_s: float = 20.0) -> Any:
    """The first truthy answer, or the last one at the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = await ask()
        if answer or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(0.2)


StartDesktop = Callable[..., Awaitable[Desktop]]


@contextlib.asynccontextmanager
async def desktops(client: docker.DockerClient, image: str, deployment: str) -> AsyncIterator[StartDesktop]:
    """A function that starts desktops (keywords as for `containers.run`); all are removed at the end."""
    started: list[Desktop] = []

    async def start(**changes: Any) -> Desktop:
        ports = {f"{port}/tcp": ("127.0.0.1", None) for port in (5000, 8006)}
        labels = {LABEL_DEPLOYMENT: deployment}
        options = {**FLAGS, "ports": ports, "labels": labels, "detach": True, **changes}
        desktop = Desktop(await asyncio.to_thread(lambda: client.containers.run(image, **options)))
        started.append(desktop)
        await desktop.connect()
        return desktop

    try:
        yield start
    finally:
        for desktop in started:
            await desktop.http.aclose()
            await asyncio.to_thread(desktop.container.remove, force=True, v=True)
