"""Fixtures shared by all tests: one real Postgres, one real Temporal dev server, the Docker engine.

Everything is started on demand and once per session (with xdist: per worker); unit tests ask for none of it.
"""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker
import hypothesis
import psutil
import pytest
from docker.errors import DockerException
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from rollbook.config.settings import get_settings
from rollbook.ledger.migrate import upgrade
from rollbook.sandboxes.docker.image import ensure_image
from tests.support.servers import (
    PostgresServer,
    TemporalServer,
    clone_database,
    deployments_of,
    new_postgres,
    new_temporal,
    remove_deployment,
    scratch_directory,
)

RUN_ID = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)[:8]
"""The same in all xdist workers of one run."""
SLOW_TIMEOUT_S = 900


WORKER_EXIT_S = 60
# No deadlines: the processors are shared, and a wall-clock time proves nothing.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_configure() -> None:
    """SIGTERM (a CI timeout) ends the run as Ctrl-C does: fixtures stop their servers and remove their desktops."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_keyboard_interrupt() -> None:
    """Let the xdist workers clean up: xdist kills them after 10 s, and their servers would be left running."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    workers = [child for child in psutil.Process().children() if "stdin.readline" in " ".join(child.cmdline())]
    for worker in workers:
        worker.send_signal(signal.SIGINT)
    psutil.wait_procs(workers, timeout=WORKER_EXIT_S)


STACKS = frozenset({"tests.integration.test_stack_batches.py"})
"""Modules with desktops that need nothing of the other desktops' fixtures."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give xdist its groups: the tests that use the Docker engine are one, every other module is one of its own.

    Desktops then compete with few others for memory and processors, and the fixtures of a module are set up once. The
    group of the desktops begins first, because it takes longest; whole stacks with desktops are a group beside it.
    """
    for item in items:
        module = item.nodeid.partition("::")[0].replace("/", ".")
        group = "desktops" if _uses_desktops(item) and module not in STACKS else module
        item.add_marker(pytest.mark.xdist_group(group))
        # a whole batch on desktops takes minutes where the machine is loaded
        if (item.get_closest_marker("slow") or _uses_desktops(item)) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    items.sort(key=lambda item: not _uses_desktops(item))  # stable: the order within each half stays


def _uses_desktops(item: pytest.Item) -> bool:
    """By its fixtures, or by a parameter that asks for the provider."""
    callspec = getattr(item, "callspec", None)
    return "docker_client" in getattr(item, "fixturenames", ()) or (
        callspec is not None and "docker" in callspec.params.values()
    )


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A session directory outside homes that other users may enter."""
    with scratch_directory() as path:
        yield path


@pytest.fixture(scope="session")
async def pg_server(scratch: Path) -> AsyncIterator[PostgresServer]:
    """One embedded Postgres for the session. Tests that kill a server make their own with `new_postgres`."""
    server = new_postgres(scratch)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def database_url(pg_server: PostgresServer) -> AsyncIterator[str]:
    """SQLAlchemy URL of a fresh, empty database for one test."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    yield await pg_server.create_database(name)
    await pg_server.drop_database(name)


@pytest.fixture(scope="session")
async def template_database(pg_server: PostgresServer) -> str:
    """Name of a migrated, empty ledger: copying it is quicker than migrating each time."""
    name = "template_ledger"
    await asyncio.to_thread(upgrade, await pg_server.create_database(name))
    return name


@pytest.fixture(scope="module")
async def ledger_url(pg_server: PostgresServer, template_database: str) -> AsyncIterator[str]:
    """SQLAlchemy URL of a fresh, migrated ledger shared by the tests of one module."""
    name = f"m_{uuid.uuid4().hex[:12]}"
    yield await clone_database(pg_server, template_database, name)
    await pg_server.drop_database(name)


@pytest.fixture(scope="session")
async def temporal_server(scratch: Path) -> AsyncIterator[TemporalServer]:
    """One dev server for the session, our search attributes registered. Use task queues of your own."""
    server = new_temporal(scratch)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
def temporal_address(temporal_server: TemporalServer) -> str:
    """`host:port` of the session's Temporal frontend."""
    return temporal_server.address


@pytest.fixture(scope="session")
async def temporal_client(temporal_address: str) -> Client:
    """A client of the session's Temporal server, with the pydantic data converter."""
    return await Client.connect(temporal_address, data_converter=pydantic_data_converter)


@pytest.fixture(scope="session")
def deployment_id() -> str:
    """A deployment id of this session's own: containers labelled with it are removed at its end."""
    return f"test-{RUN_ID}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


@pytest.fixture(scope="session")
def docker_client(deployment_id: str) -> Iterator[docker.DockerClient]:
    """The Docker engine; skips, with the reason, where none answers."""
    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except DockerException as error:
        pytest.skip(f"no Docker engine: {error}")
    yield client
    for own in deployments_of(client, deployment_id):
        remove_deployment(client, own)
    client.close()


@pytest.fixture(scope="session")
async def desktop_image(docker_client: docker.DockerClient) -> str:
    """The desktop image: ROLLBOOK_DESKTOP_IMAGE, or the one of `infra/desktop`, built when its inputs changed."""
    return get_settings().desktop_image or await ensure_image()
