"""The desktops of a deployment on the local Docker engine, found by label only."""

import asyncio
from collections.abc import Callable

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container

DEPLOYMENT_LABEL = "rollbook.deployment"


async def count_desktops(deployment_id: str) -> int | None:
    """How many containers carry the label of `deployment_id`; None if no engine answers."""
    return await asyncio.to_thread(_with_engine, 10, lambda client: len(_list(client, deployment_id)))


async def remove_desktops(deployment_id: str) -> int | None:
    """Remove every container that carries the label of `deployment_id`; how many, None if no engine answers."""
    return await asyncio.to_thread(_with_engine, 120, lambda client: _remove(client, deployment_id))


def _with_engine(timeout_s: int, use: Callable[[docker.DockerClient], int]) -> int | None:
    try:
        client = docker.from_env(timeout=timeout_s)
    except DockerException:
        return None
    try:
        client.ping()
        return use(client)
    except (DockerException, OSError):
        return None
    finally:
        client.close()


def _list(client: docker.DockerClient, deployment_id: str) -> list[Container]:
    label = f"{DEPLOYMENT_LABEL}={deployment_id}"
    return list(client.containers.list(all=True, filters={"label": label}, ignore_removed=True))


def _remove(client: docker.DockerClient, deployment_id: str) -> int:
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
    return removed
