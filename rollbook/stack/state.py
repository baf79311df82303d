"""The state of the stack: `stack.json` in the state directory, written by the supervisor.

Other processes read it to find addresses (`rollbook.config.connections`), processes (`ps`) and processes to clean up
(`down`). It is readable by its owner only.
"""

import os
import stat
from pathlib import Path
from typing import Literal

from filelock import AsyncFileLock, FileLock, Timeout
from pydantic import BaseModel, Field, ValidationError

from rollbook.config.settings import Settings
from rollbook.errors import ConfigError
from rollbook.stack.processes import ProcessRef

ChildPhase = Literal["starting", "ready", "restarting", "stopped"]
StackPhase = Literal["starting", "ready", "failed", "stopping", "stopped"]


class ChildState(BaseModel):
    """One supervised process."""

    phase: ChildPhase = "starting"
    ref: ProcessRef | None = None
    """The process now; None between an exit and the next start."""
    since: float = 0.0
    """Begin of the phase, seconds since the epoch."""
    restarts: int = 0
    last_exit: str | None = None
    """The reason of its last exit, for instance `signal SIGKILL`."""
    log: Path
    address: str | None = None
    """The address it listens on, as people would type it."""


class StackState(BaseModel):
    """The whole stack."""

    version: int = 1
    phase: StackPhase
    error: str | None = None
    """The reason for the phase `failed`."""
    deployment_id: str
    task_queue: str | None = None
    """The setting of that name."""
    supervisor: ProcessRef | None = None
    token: str | None = None
    """Marks every process of this run in its environment (`ROLLBOOK_STACK_TOKEN`)."""
    settings_digest: str = ""
    started_at: float = 0.0
    children: dict[str, ChildState] = Field(default_factory=dict)
    ports: dict[str, int] = Field(default_factory=dict)
    """Ports of this run; the next one prefers them."""
    temporal_address: str | None = None
    temporal_namespace: str = "default"
    temporal_ui_url: str | None = None
    database_url: str | None = None
    """Ledger URL of the embedded Postgres; None when the ledger is elsewhere (`ROLLBOOK_DATABASE_URL`)."""
    artifact_base_url: str | None = None

    def settings_of(self, settings: Settings) -> Settings:
        """The settings with deployment and task queue of this stack, should they have changed since it was started."""
        return settings.model_copy(update={"deployment_id": self.deployment_id, "task_queue": self.task_queue})

    def running(self) -> bool:
        """True while the supervisor lives and has not given up."""
        return self.phase in ("starting", "ready") and self.supervisor is not None and self.supervisor.alive()

    def healthy(self) -> bool:
        """True when every process is there and ready."""
        return (
            self.phase == "ready"
            and self.running()
            and all(c.phase == "ready" and c.ref is not None and c.ref.alive() for c in self.children.values())
        )


class StateDir:
    """The state directory and the files in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_file = root / "stack.json"
        self.engine_used = root / "engine-used"
        """Exists while desktops may have been started on the local Docker engine: from `up` to a clean `down`."""
        self.engine = root / "engine.json"
        """Names the process of a Docker engine that was started for this stack (`ProcessRef`)."""
        self.logs = root / "logs"
        self.run = root / "run"
        self.temporal = root / "temporal"
        self.postgres = root / "postgres"
        self.artifacts = root / "artifacts"

    @classmethod
    def of(cls, settings: Settings) -> "StateDir":
        return cls(settings.state_dir)

    @classmethod
    def made(cls, settings: Settings) -> "StateDir":
        """The directory, made if need be. ConfigError, and nothing is made, where the embedded Postgres cannot be."""
        if settings.database_url is None:
            require_enterable(settings.state_dir)
        state_dir = cls.of(settings)
        state_dir.create()
        return state_dir

    def create(self) -> None:
        """Make the directory. ConfigError if another user owns it (its default name is predictable)."""
        try:
            # Root's may be entered by the Postgres user; the directories below are closed one by one.
            self.root.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
            # Not stat: the default name is predictable, and another user may have put a link there.
            status = self.root.lstat()
        except OSError as error:
            raise ConfigError(
                f"ROLLBOOK_STATE_DIR {self.root} cannot be created ({error.strerror}): set it to a directory of yours"
            ) from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ConfigError(
                f"ROLLBOOK_STATE_DIR {self.root} must be a directory that you own and no other user may write to: "
                "remove it, chmod go-w it, or choose another"
            )
        for private in (self.logs, self.run, self.artifacts):
            private.mkdir(mode=0o700, exist_ok=True)

    def read(self) -> StackState | None:
        """The last written state, or None if the stack was never started here."""
        try:
            return StackState.model_validate_json(self.state_file.read_bytes())
        except FileNotFoundError:
            return None
        except PermissionError:
            raise ConfigError(
                f"{self.state_file} belongs to another user: set ROLLBOOK_STATE_DIR to a directory of yours"
            ) from None
        except ValidationError as error:
            raise ConfigError(f"{self.state_file} is damaged ({error.error_count()} errors): delete it") from error

    def write(self, state: StackState) -> None:
        """Replace the state in one step, so that readers never see a part of it."""
        partial = self.state_file.with_suffix(".partial")
        # Not chmod afterwards: addresses and the token are private from the first byte on.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as file:
            file.write(state.model_dump_json(indent=1))
        partial.replace(self.state_file)

    def lock(self, name: str) -> AsyncFileLock:
        """The lock file `name`, for `async with`: waits while another process holds it."""
        return AsyncFileLock(self.root / f"{name}.lock")

    def try_lock(self, name: str) -> FileLock | None:
        """Take the lock file `name` until this process ends; None if another process holds it."""
        lock = FileLock(self.root / f"{name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return None
        return lock


def require_enterable(directory: Path) -> None:
    """ConfigError where root's Postgres, which runs as a user of its own, could not enter what lies above."""
    if os.geteuid() != 0:
        return
    for parent in directory.resolve().parents:
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            raise ConfigError(
                f"ROLLBOOK_STATE_DIR lies below {parent}, which other users may not enter, and Postgres does "
                "not run as root: choose a directory outside private homes, for instance /var/lib/rollbook"
            )
