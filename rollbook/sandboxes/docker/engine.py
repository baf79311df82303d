"""One Docker engine: the blocking SDK behind a few awaitable calls in threads of their own."""

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import parse_repository_tag

from rollbook.errors import ProviderUnavailable, SandboxStartFailed
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT

T = TypeVar("T")

LABEL_EGRESS = "rollbook.egress"
"""Label of networks, not of sandboxes."""

THREADS = 24
"""The default executor has about as many threads as cores: a few hanging calls would block everything else."""

AWAY_ERRORS = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
"""Exceptions of the SDK when the engine is silent or gone. An `APIError`, which is one of these too, is an answer."""

NO_NETWORK_LEFT = ("address pool", "fully subnetted")
"""Parts of the engine's message when every range for networks is taken."""


NO_NETWORK_FIX = (
    "the Docker host has no address range left for another network ({}): remove unused ones with "
    "`docker network prune`, or widen default-address-pools in the engine's daemon.json"
)


def docker_client(timeout_s: float, base_url: str | None = None, **options: Any) -> docker.DockerClient:
    """Connect to the engine of `base_url`, else of DOCKER_HOST, else of this machine; the caller closes the client.

    Raises DockerException when no engine answers.
    """
    options["timeout"] = timeout_s
    return docker.DockerClient(base_url=base_url, **options) if base_url else docker.from_env(**options)


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
        self._network_lock = asyncio.Lock()

    async def _run(self, call: Callable[[docker.DockerClient], T]) -> T:
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
            self._cpus = int((await self._run(lambda client: client.info()))["NCPU"])
        return self._cpus

    async def rows(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Containers in any state that carry all of `labels`; checked again here, whatever the engine filtered."""
        wanted = [f"{name}={value}" for name, value in labels.items()]
        rows = await self._run(lambda client: client.api.containers(all=True, filters={"label": wanted}))
        return [row for row in rows if labels.items() <= (row.get("Labels") or {}).items()]

    async def inspect(self, container_id: str) -> dict[str, Any] | None:
        """Everything about a container; None when there is none."""
        try:
            return dict(await self._run(lambda client: client.api.inspect_container(container_id)))
        except NotFound:
            return None

    async def create(self, arguments: Mapping[str, Any], host: Mapping[str, Any]) -> str:
        """Create a container and return its id. Raises NameTaken, ImageMissing."""

        def call(client: docker.DockerClient) -> str:
            config = client.api.create_host_config(**host)
            return str(client.api.create_container(host_config=config, **arguments)["Id"])

        try:
            return await self._run(call)
        except ImageNotFound as error:
            raise ImageMissing(explain(error)) from error
        except APIError as error:
            if error.status_code == 409:
                raise NameTaken(explain(error)) from error
            raise

    async def start(self, container_id: str) -> None:
        """Start a created container; one that runs already is left alone. Raises NetworkGone, ContainerGone."""
        try:
            await self._run(lambda client: client.api.start(container_id))
        except NotFound as error:
            if "network" in explain(error):
                raise NetworkGone(explain(error)) from error
            raise ContainerGone(explain(error)) from error

    async def has_image(self, image: str) -> bool:
        """Return whether the engine has an image of this name or id."""
        try:
            await self._run(lambda client: client.images.get(image))
        except APIError as error:
            if error.status_code in (400, 404):  # 400: no image can have such a name
                return False
            raise
        return True

    async def pull(self, image: str) -> str | None:
        """Pull an image; None when the engine has it then, else why not."""
        name, tag = parse_repository_tag(image)
        try:
            await self._run(lambda client: client.api.pull(name, tag=tag or "latest"))
        except APIError as error:
            return explain(error)
        return None if await self.has_image(image) else "its registry sent no such image"

    async def unpause(self, container_id: str) -> None:
        """Let a paused container run on."""
        await self._run(lambda client: client.api.unpause(container_id))

    async def remove(self, container_id: str) -> None:
        """Kill and remove; a container that is gone or being removed is fine."""
        try:
            await self._run(lambda client: client.api.remove_container(container_id, force=True, v=True))
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:
                raise

    async def last_output(self, container_id: str) -> bytes:
        """The last lines that a container printed; empty when they cannot be had."""
        try:
            return bytes(await self._run(lambda client: client.api.logs(container_id, tail=20)))
        except (APIError, ProviderUnavailable):
            return b""

    async def network(self, deployment: str, egress: str) -> str:
        """Id of the deployment's bridge for this kind of egress, created when missing.

        Its name is unique, because the engine lets two creators make two networks of one name and then starts no
        container in either. Creators at once agree on the oldest and remove their own.

        Raises SandboxStartFailed with the fix when the engine has no address range left for another network.
        """
        try:
            async with self._network_lock:
                return await self._run(lambda client: _network(client, deployment, egress))
        except APIError as error:
            if any(words in explain(error) for words in NO_NETWORK_LEFT):
                raise SandboxStartFailed(NO_NETWORK_FIX.format(explain(error))) from error
            raise

    async def remove_networks(self, deployment: str) -> int:
        """Remove the deployment's bridges; one that is still in use stays. Returns how many were removed."""
        return await self._run(lambda client: remove_networks(client, deployment))


def remove_networks(client: docker.DockerClient, deployment: str) -> int:
    """Remove every network with the label of `deployment` that no container is in; returns how many.

    In use (403, 409) and gone already (404) are fine.
    """
    removed = 0
    for row in client.api.networks(filters={"label": f"{LABEL_DEPLOYMENT}={deployment}"}):
        try:
            client.api.remove_network(row["Id"])
            removed += 1
        except APIError as error:
            if error.status_code not in (403, 404, 409):
                raise
    return removed


def network_arguments(deployment: str, egress: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `create_network`: guests of a bridge do not see each other; without egress, no masquerade.

    Not an `internal` network: those publish no ports on Docker 20.10.
    """
    return {
        "name": f"rollbook-{deployment}-{egress}-{uuid.uuid4().hex[:8]}",
        "driver": "bridge",
        "labels": dict(labels),
        "options": {
            "com.docker.network.bridge.enable_icc": "false",
            "com.docker.network.bridge.enable_ip_masquerade": "true" if egress == "open" else "false",
        },
    }


def _network(client: docker.DockerClient, deployment: str, egress: str) -> str:
    labels = {LABEL_DEPLOYMENT: deployment, LABEL_EGRESS: egress}

    def oldest() -> str | None:
        rows = client.api.networks(filters={"label": [f"{name}={value}" for name, value in labels.items()]})
        return min(((row["Created"], row["Id"]) for row in rows), default=(None, None))[1]

    existing = oldest()
    if existing is not None:
        return existing
    mine = str(client.api.create_network(**network_arguments(deployment, egress, labels))["Id"])
    agreed = oldest() or mine
    if agreed != mine:
        with suppress(NotFound):
            client.api.remove_network(mine)
    return agreed


def explain(error: BaseException) -> str:
    """Return Docker's own error message."""
    text = getattr(error, "explanation", None) or str(error)
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    with suppress(ValueError, TypeError, KeyError):
        text = json.loads(text)["message"]
    return f"{type(error).__name__}: {text}"
