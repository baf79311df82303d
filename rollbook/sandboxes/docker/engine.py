"""One Docker engine: the blocking SDK behind a few awaitable calls in threads of their own."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import parse_repository_tag

from rollbook.errors import ProviderUnavailable, SandboxStartFailed

T = TypeVar("T")

THREADS = 24
"""The default executor has about as many threads as cores: a few hanging calls would block everything else."""

AWAY_ERRORS = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
"""Exceptions of the SDK when the engine is silent or gone. An `APIError`, which is one of these too, is an answer."""


def docker_client(timeout_s: float, base_url: str | None = None, **options: Any) -> docker.DockerClient:
    """Connect to the engine of `base_url`, else of DOCKER_HOST, else of this machine; the caller closes the client.

    Raises DockerException when no engine answers.
    """
    options["timeout"] = timeout_s
    return docker.DockerClient(base_url=base_url, **options) if base_url else docker.from_env(**options)


MANIFEST_LABEL = "rollbook.manifest"
"""Label of an image with its manifest: what it holds is known without starting it."""


class NameTaken(SandboxStartFailed):
    """Another container has the name already: another creator of the same key was faster."""


class NetworkGone(SandboxStartFailed):
    """The container's network was removed between its creation and its start."""


class ContainerGone(SandboxStartFailed):
    """The container was removed between its creation and its start: by a rival whose start of it had failed."""


class ImageMissing(SandboxStartFailed):
    """The engine does not have the image."""


class Engine:
    """Calls to one Docker engine.

    An engine that does not answer is `ProviderUnavailable`. What it answers, an `APIError`, passes through: the
    caller knows what a refusal means.
    """

    def __init__(self, base_url: str | None, timeout_s: float) -> None:
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._client: docker.DockerClient | None = None
        self._connecting = threading.Lock()
        self._cpus = 0

    async def run(self, call: Callable[[docker.DockerClient], T]) -> T:
        """Run a blocking call of the SDK in a thread. Raises APIError as it is, ProviderUnavailable for the rest."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(self._connected()))
        except APIError:
            raise
        except AWAY_ERRORS as error:
            raise ProviderUnavailable(f"the Docker engine does not answer: {explain(error)}") from error

    def _connected(self) -> docker.DockerClient:
        with self._connecting:
            if self._client is None:
                self._client = docker_client(self._timeout_s, self._base_url, max_pool_size=THREADS)
            return self._client

    async def close(self) -> None:
        """Give connections back and let the threads end; running calls finish on their own."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def cpus(self) -> int:
        """Cores of the engine's host (asked once)."""
        if not self._cpus:
            self._cpus = int((await self.run(lambda client: client.info()))["NCPU"])
        return self._cpus

    async def rows(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Containers in any state that carry all of `labels`; checked again here, whatever the engine filtered."""
        wanted = [f"{name}={value}" for name, value in labels.items()]
        rows = await self.run(lambda client: client.api.containers(all=True, filters={"label": wanted}))
        return [row for row in rows if labels.items() <= (row.get("Labels") or {}).items()]

    async def inspect(self, container_id: str) -> dict[str, Any] | None:
        """Everything about a container; None when there is none."""
        try:
            return dict(await self.run(lambda client: client.api.inspect_container(container_id)))
        except NotFound:
            return None

    async def create(self, arguments: Mapping[str, Any], host: Mapping[str, Any]) -> str:
        """Create a container and return its id. Raises NameTaken, ImageMissing, NetworkGone."""

        def call(client: docker.DockerClient) -> str:
            config = client.api.create_host_config(**host)
            return str(client.api.create_container(host_config=config, **arguments)["Id"])

        try:
            return await self.run(call)
        except ImageNotFound as error:
            raise ImageMissing(explain(error)) from error
        except NotFound as error:
            if "network" in explain(error):
                raise NetworkGone(explain(error)) from error
            raise
        except APIError as error:
            if error.status_code == 409:
                raise NameTaken(explain(error)) from error
            raise

    async def start(self, container_id: str) -> None:
        """Start a created container; one that runs already is left alone. Raises NetworkGone, ContainerGone."""
        try:
            await self.run(lambda client: client.api.start(container_id))
        except NotFound as error:
            if "network" in explain(error):
                raise NetworkGone(explain(error)) from error
            raise ContainerGone(explain(error)) from error

    async def image(self, image: str) -> dict[str, Any] | None:
        """Everything about an image by its name or id; None when the engine has none."""
        try:
            return dict(await self.run(lambda client: client.images.get(image).attrs))
        except APIError as error:
            if error.status_code in (400, 404):  # 400: no image can have such a name
                return None
            raise

    async def pull(self, image: str) -> str | None:
        """Pull an image; None when the engine has it then, else why not."""
        name, tag = parse_repository_tag(image)
        try:
            await self.run(lambda client: client.api.pull(name, tag=tag or "latest"))
        except APIError as error:
            return explain(error)
        return "its registry sent no such image" if await self.image(image) is None else None

    async def unpause(self, container_id: str) -> None:
        """Let a paused container run on."""
        await self.run(lambda client: client.api.unpause(container_id))

    async def remove(self, container_id: str) -> None:
        """Kill and remove; a container that is gone or being removed is fine."""
        try:
            await self.run(lambda client: client.api.remove_container(container_id, force=True, v=True))
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:
                raise

    async def events(self) -> list[dict[str, Any]]:
        """Every event that the engine remembers, oldest first."""
        now = int(time.time()) + 1
        return await self.run(lambda client: list(client.api.events(since=1, until=now, decode=True)))

    async def changed_files(self, container_id: str) -> list[dict[str, Any]] | None:
        """Files of a container that differ from its image; None when it is gone."""
        try:
            return list(await self.run(lambda client: client.api.diff(container_id)) or [])
        except NotFound:
            return None

    async def processes(self, container_id: str, columns: str) -> dict[str, Any] | None:
        """Processes of a container as its host sees them; None when it does not run."""
        try:
            return dict(await self.run(lambda client: client.api.top(container_id, columns)))
        except APIError as error:
            if error.status_code in (404, 409) or "is not running" in explain(error):
                return None
            raise

    async def last_output(self, container_id: str) -> bytes:
        """The last lines that a container printed; empty when they cannot be had."""
        try:
            return bytes(await self.run(lambda client: client.api.logs(container_id, tail=20)))
        except (APIError, ProviderUnavailable):
            return b""


def parse_time(text: str) -> datetime:
    """A time as the engine writes it: nanoseconds, of which Python reads microseconds; UTC or with a zone."""
    return datetime.fromisoformat(re.sub(r"(\.\d{1,6})\d*", r"\1", text).replace("Z", "+00:00"))


def explain(error: BaseException) -> str:
    """Return Docker's own error message."""
    text = getattr(error, "explanation", None) or str(error)
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    with suppress(ValueError, TypeError, KeyError):
        text = json.loads(text)["message"]
    return f"{type(error).__name__}: {text}"
