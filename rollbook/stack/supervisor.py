"""The supervisor: one detached process that runs the stack's children and writes down what they do.

`python -m rollbook.stack.supervisor` detaches itself and returns at once; SIGTERM ends it and every child.
"""

import asyncio
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psycopg
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

from rollbook.config.connections import as_role, ledger_url
from rollbook.config.settings import Settings, load_settings
from rollbook.errors import ConfigError, RollbookError
from rollbook.ledger.migrate import upgrade
from rollbook.stack.children import TOKEN_VARIABLE, Child, Restarter, StackError, stop_leftovers
from rollbook.stack.postgres import PostgresServer
from rollbook.stack.processes import PREFERRED, ProcessRef, choose
from rollbook.stack.servers import ArtifactServer, TemporalServer, Worker
from rollbook.stack.state import ChildState, StackPhase, StackState, StateDir


async def check_ledger(url: str) -> None:
    """ConfigError if no Postgres answers at `url`, the one of ROLLBOOK_DATABASE_URL."""
    try:
        connection = await psycopg.AsyncConnection.connect(url.replace("+psycopg", "", 1), connect_timeout=10)
    except psycopg.OperationalError as error:
        raise ConfigError(f"the Postgres of ROLLBOOK_DATABASE_URL refuses the connection: {error}") from error
    await connection.close()


async def external_temporal() -> tuple[str, str]:
    """(address, namespace) of the configured Temporal server, which must answer."""
    config = ClientConfig.load_client_connect_config()
    address, namespace = config.get("target_host"), config.get("namespace", "default")
    if not address:
        raise ConfigError("ROLLBOOK_TEMPORAL=external, but no server is named: set TEMPORAL_ADDRESS or a profile")
    try:
        await Client.connect(**config)
    except (RPCError, RuntimeError) as error:
        raise ConfigError(f"no Temporal server answers at {address} (TEMPORAL_ADDRESS): {error}") from error
    return address, namespace


ServerT = TypeVar("ServerT", bound=Child)

WRITE_AGAIN_S = 2.0

logger = logging.getLogger("rollbook.stack.supervisor")


class Supervisor:
    """Brings the stack of `settings` up in order, keeps it up, takes it down in reverse order."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dir = StateDir.of(settings)
        self._restarters: list[Restarter] = []
        self._stop = asyncio.Event()
        before = self._dir.read()
        self._preferred = dict(PREFERRED) | (before.ports if before else {})
        self._state = StackState(
            phase="starting",
            deployment_id=settings.deployment_id,
            task_queue=settings.task_queue,
            supervisor=ProcessRef.of(os.getpid()),
            token=secrets.token_hex(16),
            settings_digest=settings.digest(),
            started_at=time.time(),
        )
        self._env = {**os.environ, TOKEN_VARIABLE: self._state.token or ""}

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; the exit code."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop.set)
        before = self._dir.read()
        if before is not None:
            await stop_leftovers(before, logger.warning)
        self._write()
        failure = await self._until_stopped()
        self._set_phase("stopping")
        for restarter in reversed(self._restarters):
            await restarter.stop()
        await stop_leftovers(self._state, logger.warning)
        self._state.error = failure
        self._set_phase("failed" if failure else "stopped")
        return 1 if failure else 0

    async def _until_stopped(self) -> str | None:
        """Bring the stack up and wait for the stop signal; what went wrong, if anything."""
        stopped = asyncio.create_task(self._stop.wait())
        rising = asyncio.create_task(self._bring_up())
        await asyncio.wait({stopped, rising}, return_when=asyncio.FIRST_COMPLETED)
        if not rising.done():
            rising.cancel()
            await asyncio.wait({rising})
            stopped.cancel()
            return None
        if (error := rising.exception()) is not None:
            logger.error("the stack does not start", exc_info=error)
            stopped.cancel()
            return _explain(error)
        self._set_phase("ready")
        logger.info("the stack is ready")
        await stopped
        return None

    async def _bring_up(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ledger())
            group.create_task(self._temporal())
            group.create_task(self._artifacts())
        await self._workers()

    async def _ledger(self) -> None:
        if self._settings.database_url is not None:
            url = self._settings.database_url.get_secret_value()
            await check_ledger(url)
            await asyncio.to_thread(upgrade, ledger_url(self._settings, "owner"))
        else:
            server = PostgresServer(self._dir.postgres, self._log("postgres"), env=self._env)
            await self._keep(server, f"unix socket in {server.socket_directory}")
            owner = await server.create_database("rollbook")
            await asyncio.to_thread(upgrade, owner)
            await server.let_roles_log_in()
            self._state.database_url = owner
            url = as_role(owner, "worker")
        self._env["ROLLBOOK_DATABASE_URL"] = url
        self._env.pop("ROLLBOOK_OWNER_DATABASE_URL", None)
        self._write()

    async def _temporal(self) -> None:
        if self._settings.temporal == "external":
            address, namespace = await external_temporal()
        else:
            server = await self._keep_on_free_port(self._new_temporal)
            address, namespace = server.address, "default"
            self._env |= {"TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": namespace}
            # Ledger and server are of one state directory: a server without the ledger's workflows has lost them.
            own = self._settings.database_url is None
            self._env["ROLLBOOK_ADOPT_TEMPORAL"] = str(own or self._settings.adopt_temporal)
            self._state.temporal_ui_url = server.ui_url
        self._state.temporal_address, self._state.temporal_namespace = address, namespace
        self._write()

    def _new_temporal(self) -> tuple[TemporalServer, str]:
        port = self._port("temporal", self._settings.temporal_port)
        ui_port = self._port("temporal_ui", self._settings.temporal_ui_port)
        server = TemporalServer(self._dir.temporal, self._log("temporal"), port, ui_port, env=self._env)
        server.retention_days = self._settings.retention_days
        return server, f"{server.address}, UI {server.ui_url}"

    async def _artifacts(self) -> None:
        server = await self._keep_on_free_port(self._new_artifact_server)
        self._state.artifact_base_url = server.base_url
        self._write()

    def _new_artifact_server(self) -> tuple[ArtifactServer, str]:
        port = self._port("artifact", self._settings.artifact_port)
        server = ArtifactServer(self._settings.artifacts, self._log("artifacts"), port, env=self._env)
        return server, server.base_url

    async def _workers(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.worker_processes):
                group.create_task(self._worker("worker" if number == 0 else f"worker-{number + 1}"))

    async def _worker(self, name: str) -> None:
        assert self._state.temporal_address is not None
        worker = Worker(
            name,
            self._log(name),
            self._dir.run / f"{name}.ready",
            self._state.temporal_address,
            self._state.temporal_namespace,
            self._settings.task_queue_orchestrate,
            self._settings.worker_drain_s,
            env=self._env,
        )
        await self._keep(worker, f"task queue {self._settings.task_queue_orchestrate}")

    async def _keep_on_free_port(self, make: Callable[[], tuple[ServerT, str]]) -> ServerT:
        """Start the server of `make`, which chooses the ports; again if another program was quicker to one."""
        for last in (False, False, True):
            server, address = make()
            try:
                await self._keep(server, address)
                return server
            except StackError:
                if last or "address already in use" not in server.output():
                    raise
                logger.warning("another program took a port of %s: choosing others", server.name)
                # Not the usual ones again: two stacks that start together would go on colliding.
                self._preferred = {}
        raise AssertionError("unreachable")

    async def _keep(self, child: Child, address: str) -> None:
        line = ChildState(log=child.log, address=address, since=time.time())
        self._state.children[child.name] = line
        restarter = Restarter(child, line, self._write)
        self._restarters.append(restarter)
        await restarter.start()

    def _port(self, name: str, pinned: int | None) -> int:
        port = choose(
            f"ROLLBOOK_{name.upper()}_PORT",
            pinned,
            preferred=[self._preferred[name], PREFERRED[name]] if self._preferred else [],
            avoid=self._state.ports.values(),
        )
        self._state.ports[name] = port
        return port

    def _log(self, name: str) -> Path:
        return self._dir.logs / f"{name}.log"

    def _set_phase(self, phase: StackPhase) -> None:
        self._state.phase = phase
        self._write()

    def _write(self) -> None:
        """Write the state down, again later while the disk is full: children must come back all the same."""
        try:
            self._dir.write(self._state)
        except OSError as error:
            logger.error("the state cannot be written: %s", error)
            asyncio.get_running_loop().call_later(WRITE_AGAIN_S, self._write)


def _explain(error: BaseException) -> str:
    """One line for people; an unexpected error keeps its type."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, RollbookError) else f"{type(error).__name__}: {error}"


def main() -> None:
    """Detach, take the lock, run. A second supervisor of the same directory ends at once."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o022)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings = load_settings()
    state_dir = StateDir.of(settings)
    lock = state_dir.try_lock("supervisor")
    if lock is None:
        logger.info("another supervisor runs for %s", state_dir.root)
        return
    code = asyncio.run(Supervisor(settings).run())
    logging.shutdown()
    # Not a normal exit: the Temporal client library may crash in it.
    os._exit(code)


if __name__ == "__main__":
    main()
