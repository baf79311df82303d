"""The desktops of a deployment, and their networks, on the local Docker engine: found by label only."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container

from rollbook.sandboxes.docker.engine import remove_networks

T = TypeVar("T")

DEPLOYMENT_LABEL = "rollbook.deployment"


class Removed(NamedTuple):
    """How much of a deployment was removed."""

    desktops: int
    networks: int


async def count_desktops(deployment_id: str) -> int | None:
    """How many containers carry the label of `deployment_id`; None if no engine answers."""
    try:
        return await asyncio.to_thread(_with_engine, 10, lambda client: len(_list(client, deployment_id)))
    except (DockerException, OSError):
        return None


async def remove_deployment(deployment_id: str) -> Removed:
    """Remove every container and every network that carries the label of `deployment_id`.

    Raises DockerException or OSError when the engine does not answer: something may be left then.
    """
    return await asyncio.to_thread(_with_engine, 120, lambda client: _remove(client, deployment_id))


def _with_engine(timeout_s: int, use: Callable[[docker.DockerClient], T]) -> T:
    client = docker.from_env(timeout=timeout_s)
    try:
        client.ping()
        return use(client)
    finally:
        client.close()


def _list(client: docker.DockerClient, deployment_id: str) -> list[Container]:
    label = f"{DEPLOYMENT_LABEL}={deployment_id}"
    return list(client.containers.list(all=True, filters={"label": label}, ignore_removed=True))


def _remove(client: docker.DockerClient, deployment_id: str) -> Removed:
    removed = 0
    # A second look: a worker killed a moment ago may have left a create request in the engine.
    while found := _list(client, deployment_id):
        for container in found:
            try:
                container.remove(force=True, v=True)
                removed += 1
            except NotFound:
                continue
            except APIError as error:
                if error.status_code != 409:  # "removal is already in progress"
                    raise
    return Removed(removed, remove_networks(client, deployment_id))
