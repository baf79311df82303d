"""One Docker engine: the blocking SDK behind a few awaitable calls in threads of their own."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from rollbook.errors import ConfigError, InfraError
from rollbook.sandboxes.docker_spec import LABEL_EGRESS, explain, network_arguments
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT

T = TypeVar("T")

THREADS = 24
"""The default executor has about as many threads as cores: a few hanging calls would block everything else."""

ENGINE_ERRORS = (DockerException, requests.RequestException)
"""Everything that the SDK raises when the engine refuses, is silent or is gone."""


class NameTaken(InfraError):
    """Another container has the name already: somebody was faster with the same key."""


class NetworkGone(InfraError):
    """The container's network was removed between its creation and its start."""


class Engine:
    """Calls to one Docker engine. Errors of the SDK pass through, see `ENGINE_ERRORS`."""

    def __init__(self, base_url: str | None, timeout_s: float) -> None:
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._client: docker.DockerClient | None = None
        self._connecting = threading.Lock()
        self._cpus = 0
        self._network_lock = asyncio.Lock()

    async def _run(self, call: Callable[[docker.DockerClient], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(self._connected()))

    def _connected(self) -> docker.DockerClient:
        with self._connecting:
            if self._client is None:
                options: dict[str, Any] = {"timeout": self._timeout_s, "max_pool_size": THREADS}
                if self._base_url:
                    self._client = docker.DockerClient(base_url=self._base_url, **options)
                else:
                    self._client = docker.from_env(**options)
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
        """Create a container and return its id. Raises NameTaken, ConfigError for an image that is not there."""

        def call(client: docker.DockerClient) -> str:
            config = client.api.create_host_config(**host)
            return str(client.api.create_container(host_config=config, **arguments)["Id"])

        try:
            return await self._run(call)
        except ImageNotFound as error:
            raise ConfigError(
                f"desktop image {arguments['image']!r} is not on the Docker host: leave ROLLBOOK_DESKTOP_IMAGE unset "
                "to have the desktop image built, or load that image there first"
            ) from error
        except APIError as error:
            if error.status_code == 409:
                raise NameTaken(explain(error)) from error
            raise

    async def start(self, container_id: str) -> None:
        """Start a created container; one that runs already is left alone. Raises NetworkGone."""
        try:
            await self._run(lambda client: client.api.start(container_id))
        except NotFound as error:
            if "network" in explain(error):
                raise NetworkGone(explain(error)) from error
            raise

    async def unpause(self, container_id: str) -> None:
        """Let a paused container run on."""
        await self._run(lambda client: client.api.unpause(container_id))

    async def remove(self, container_id: str) -> None:
        """Kill and remove; gone, or being removed by somebody else, is fine."""
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
        except ENGINE_ERRORS:
            return b""

    async def network(self, deployment: str, egress: str) -> str:
        """Id of the deployment's bridge for this kind of egress, created when missing.

        Its name is unique, because the engine lets two creators make two networks of one name and then starts no
        container in either. Creators at once agree on the oldest and remove their own.
        """
        async with self._network_lock:
            return await self._run(lambda client: _network(client, deployment, egress))

    async def remove_networks(self, deployment: str) -> None:
        """Remove the deployment's bridges; one that is still in use stays."""

        def call(client: docker.DockerClient) -> None:
            for row in client.api.networks(filters={"label": f"{LABEL_DEPLOYMENT}={deployment}"}):
                try:
                    client.api.remove_network(row["Id"])
                except APIError as error:
                    if error.status_code not in (403, 404, 409):
                        raise

        await self._run(call)


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
        client.api.remove_network(mine)
    return agreed
