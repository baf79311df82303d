"""Real servers for tests: the classes the local stack itself runs, on directories and ports of their own.

`TemporalServer` and `PostgresServer` can be started, stopped, killed (`kill9`) and started again on the same
data, address and port, which is what the fault tests do to them.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
import psycopg
from docker.errors import NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from psycopg import sql

from rollbook.sandboxes.docker.network import remove_networks
from rollbook.stack.postgres import PostgresServer, allow_logins
from rollbook.stack.processes import free_port
from rollbook.stack.servers import TemporalServer

__all__ = [
    "DEPLOYMENT_LABEL",
    "PostgresServer",
    "TemporalServer",
    "clone_database",
    "containers_of",
    "deployments_of",
    "let_roles_log_in",
    "networks_of",
    "new_postgres",
    "new_temporal",
    "remove_deployment",
    "scratch_directory",
]

DEPLOYMENT_LABEL = "rollbook.deployment"


@contextmanager
def scratch_directory(prefix: str = "rollbook-test-") -> Iterator[Path]:
    """A short-named directory that other users may enter, removed afterwards.

    pytest's own `tmp_path` is closed to other users (Postgres runs as one when we are root) and its names are
    too long for unix sockets.
    """
    path = Path(tempfile.mkdtemp(prefix=prefix, dir="/var/tmp"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def new_postgres(directory: Path) -> PostgresServer:
    """A Postgres server below `directory`, not started. fsync is off: kill -9 loses nothing, a power cut may."""
    return PostgresServer(directory / "postgres", directory / "logs" / "postgres.log", durable=False)


async def clone_database(server: PostgresServer, template: str, name: str) -> str:
    """Create database `name` as a copy of `template`, which has no open connection; its SQLAlchemy URL."""
    admin = server.url("postgres").replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
        await connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        # The migrations revoke this too, but Postgres does not copy the privileges of a database itself.
        await connection.execute(sql.SQL("REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))
    return server.url(name)


async def let_roles_log_in(url: str) -> None:
    """Let the roles of a test's Postgres at the owner's `url` log in, as the local stack does after its migrations."""
    async with await psycopg.AsyncConnection.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        await allow_logins(connection)


def new_temporal(directory: Path, port: int | None = None, ui_port: int | None = None) -> TemporalServer:
    """A Temporal dev server below `directory`, not started, on `port` (a free one by default), without UI."""
    return TemporalServer(directory / "temporal", directory / "logs" / "temporal.log", port or free_port(), ui_port)


def containers_of(client: docker.DockerClient, deployment_id: str) -> list[Container]:
    """All containers, running or not, that carry the label of `deployment_id`."""
    return list(
        client.containers.list(all=True, filters={"label": f"{DEPLOYMENT_LABEL}={deployment_id}"}, ignore_removed=True)
    )


def networks_of(client: docker.DockerClient, deployment_id: str) -> list[Network]:
    """All networks that carry the label of `deployment_id`."""
    return list(client.networks.list(filters={"label": f"{DEPLOYMENT_LABEL}={deployment_id}"}))


def deployments_of(client: docker.DockerClient, session: str) -> set[str]:
    """Deployments of a test session that have something on the engine: its id, or its id with a suffix."""
    found = [*client.containers.list(all=True, filters={"label": DEPLOYMENT_LABEL}, ignore_removed=True)]
    labels = [one.labels for one in found] + [
        one.attrs["Labels"] for one in client.networks.list(filters={"label": DEPLOYMENT_LABEL})
    ]
    names = {label[DEPLOYMENT_LABEL] for label in labels}
    return {name for name in names if name == session or name.startswith(f"{session}-")}


def remove_deployment(client: docker.DockerClient, deployment_id: str) -> None:
    """Remove every container and network that carries the label of `deployment_id`, and of no other."""
    for container in containers_of(client, deployment_id):
        with suppress(NotFound):
            container.remove(force=True, v=True)
    remove_networks(client, {DEPLOYMENT_LABEL: deployment_id})
