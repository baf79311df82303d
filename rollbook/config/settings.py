"""Settings: environment variables `ROLLBOOK_*`, then a `.env` file in the working directory, then defaults.

How to reach Temporal is not ours to define: `TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, … and the profiles of
`temporal config` count, exactly as for the `temporal` command line (see `rollbook.config.connections`).
"""

import hashlib
import os
import re
from functools import lru_cache
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator

from rollbook.config.osworld import EvaluatorSettings
from rollbook.errors import ConfigError

PROJECT_ROOT = Path(__file__).resolve().parents[2]
"""The checkout (or the directory the package was installed into)."""

Port = int | None


def default_state_dir() -> Path:
    """`/var/lib/rollbook` for root, `/var/tmp/rollbook-<uid>` for everybody else.

    Outside private homes, because Postgres runs as its own user when we are root.
    """
    uid = os.geteuid()
    return Path("/var/lib/rollbook") if uid == 0 else Path(f"/var/tmp/rollbook-{uid}")


def default_max_desktops() -> int:
    """Two desktops per core, at most one per 1.5 GB of memory, at least one."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return max(1, min(2 * (os.cpu_count() or 1), int(memory_gb / 1.5)))


def _stack_id(state_dir: Path) -> str:
    """Hash of a state directory's path: hexadecimal digits that two stacks on one machine do not share."""
    return hashlib.sha256(str(state_dir.expanduser().absolute()).encode()).hexdigest()[:12]


def _default_deployment(state_dir: Path) -> str:
    """A name of its own for each state directory: two stacks on one machine must not share desktops or queues."""
    return f"local-{_stack_id(state_dir)[:6]}"


class Settings(EvaluatorSettings):
    """Everything about a machine or a deployment; nothing that changes what an episode means."""

    # --- where things are -----------------------------------------------------------------------------------
    state_dir: Path = Field(default_factory=default_state_dir)
    """Directory of the local stack: databases, artifacts, logs. Must lie outside private homes when root."""
    shared: Path = Path("../shared")
    """Directory with shared inputs such as OSWorld's tasks (`<shared>/osworld`); relative to the project."""
    deployment_id: str = Field(default_factory=lambda read: _default_deployment(read["state_dir"]), max_length=63)
    """Name of this deployment, [A-Za-z0-9_.-]+. Labels every desktop: only its owner ever removes it."""
    database_url: SecretStr | None = None
    """The ledger's Postgres (`postgresql://user:password@host/name`). Unset: the local stack's own server."""
    owner_database_url: SecretStr | None = None
    """The same Postgres as the owner of the tables, for migrations alone. Unset: `database_url`."""
    artifact_url: str | None = None
    """Artifact store: `file:///absolute/directory` or `s3://bucket/prefix` (also gs, az). Unset: in `state_dir`."""

    # --- the local stack ------------------------------------------------------------------------------------
    temporal: Literal["embedded", "external"] = "embedded"
    """`embedded`: `rollbook up` runs a dev server. `external`: it uses TEMPORAL_ADDRESS or a profile."""
    temporal_port: Port = Field(default=None, ge=1, le=65535)
    """Loopback port of the dev server. Unset: 7233, or a free one when that is taken."""
    temporal_ui_port: Port = Field(default=None, ge=1, le=65535)
    """Loopback port of the Temporal UI. Unset: 8233, or a free one when that is taken."""
    artifact_port: Port = Field(default=None, ge=1, le=65535)
    """Loopback port of the read-only artifact server. Unset: 8288, or a free one when that is taken."""
    worker_processes: int = Field(default=1, ge=0, le=64)
    """Number of worker processes of `rollbook up`; each has all roles."""
    worker_drain_s: float = Field(default=20.0, ge=0)
    """Seconds a worker may use to finish running activities when the stack stops."""
    retention_days: int = Field(default=7, ge=1, le=365)
    """Days the dev server keeps finished workflows. The ledger keeps its rows permanently."""
    install_docker: bool = True
    """Allow installing a missing Docker engine (root on Debian or Ubuntu only)."""

    # --- task queues ----------------------------------------------------------------------------------------
    task_queue: str | None = Field(default=None, min_length=1)
    """Task queue of this deployment. Unset: `rollbook-<deployment id>`, so that two deployments share none."""
    split_task_queues: bool = False
    """Give the roles desktop and osworld queues of their own. One queue for all saves a dispatch per activity."""

    # --- desktops -------------------------------------------------------------------------------------------
    desktop_image: str | None = None
    """Docker image of the desktop. Unset: the image built from `infra/desktop`, tagged by its inputs."""
    desktop_base: Literal["auto", "pull", "debootstrap"] = "auto"
    """Source of the image's Debian: pulled, built by debootstrap, or the first that works."""
    apt_mirror: str | None = None
    """Debian mirror for building the desktop image (a URL). Unset: the one in this machine's own apt sources."""
    max_desktops: int = Field(default_factory=default_max_desktops, ge=1, le=10_000)
    """Number of desktops that may run at once on this machine."""
    max_pressure: float | None = Field(default=None, gt=0)
    """Pressure on this worker's machine above which no new desktop starts, in percent. Unset: none is held back."""
    docker_subnets: IPv4Network = IPv4Network("198.18.0.0/15")
    """IPv4 range from which each Docker desktop gets a network of its own (8 addresses each)."""
    ready_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds a desktop may take from its creation to its first screenshot."""
    cleanup_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds the cleanup of a desktop that failed to start may take."""
    vnc_password: SecretStr | None = None
    """Password of the live view (VNC). Unset: the view is open to this machine only."""

    # --- models ---------------------------------------------------------------------------------------------
    endpoints_file: Path | None = None
    """TOML or JSON file of endpoint profiles: where models are served and with which key."""

    allow_null_desktop: bool = False
    """Allow the do-nothing desktop in workers. For benchmarks and rehearsals only: its scores mean nothing."""

    # --- workers --------------------------------------------------------------------------------------------
    worker_activities: int = Field(default=100, ge=1, le=10_000)
    """Activities that one worker process runs at once per task queue."""
    ledger_connections: int = Field(default=10, ge=1, le=500)
    """Connections to the ledger per process."""
    heartbeat_s: float = Field(default=30.0, ge=1, le=600)
    """Heartbeat timeout of long activities, seconds. Must exceed a fail-over of the Temporal server."""
    lease_s: float = Field(default=7200.0, ge=60)
    """Seconds a desktop's lease lasts without renewal."""
    adopt_temporal: bool = False
    """Take another Temporal server than the ledger's for the successor of a lost one. Set by `rollbook up` alone."""
    janitor_interval_s: float = Field(default=300.0, ge=5, le=86_400)
    """Seconds between two runs of the Janitor."""
    janitor_min_age_s: float = Field(default=120.0, ge=1)
    """Seconds a row must have been quiet before the Janitor looks at it."""
    pump_slice_s: float = Field(default=60.0, gt=0, le=3600)
    """Seconds of one pump call; the batch shows its roll call in the Temporal UI after each."""
    pump_slices_per_run: int = Field(default=200, ge=1, le=1000)
    """Pump calls before a batch continues as new."""

    @field_validator("deployment_id")
    @classmethod
    def _deployment_id(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
            raise ValueError("use letters, digits, and _ . - only")
        return value

    @field_validator("shared")
    @classmethod
    def _shared(cls, value: Path) -> Path:
        return (PROJECT_ROOT / value.expanduser()).resolve()

    @field_validator("endpoints_file")
    @classmethod
    def _endpoints_file(cls, value: Path | None) -> Path | None:
        return None if value is None else Path(os.path.abspath(value.expanduser()))

    @field_validator("state_dir")
    @classmethod
    def _state_dir(cls, value: Path) -> Path:
        return Path(os.path.abspath(value.expanduser()))

    @field_validator("database_url", "owner_database_url")
    @classmethod
    def _database_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        scheme, found, rest = value.get_secret_value().partition("://")
        if not found or scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise ValueError("use postgresql://user:password@host:5432/name")
        return SecretStr(f"postgresql+psycopg://{rest}")

    @field_validator("artifact_url")
    @classmethod
    def _artifact_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"file:///|(s3|gs|az)://[^/]", value):
            raise ValueError("use file:///absolute/directory or s3://bucket/prefix")
        return value

    @property
    def task_queue_orchestrate(self) -> str:
        """Task queue of workflows, ledger and policy activities: the one that starts a batch."""
        return self.task_queue or f"rollbook-{self.deployment_id}"

    @property
    def task_queue_desktop(self) -> str:
        """Task queue of sandbox and desktop activities."""
        return self._queue("desktop")

    @property
    def task_queue_osworld(self) -> str:
        """Task queue of setup and evaluation activities."""
        return self._queue("osworld")

    def _queue(self, role: str) -> str:
        # "/" is in no deployment id: no other deployment's queue can have this name
        return f"{self.task_queue_orchestrate}/{role}" if self.split_task_queues else self.task_queue_orchestrate

    @property
    def stack_id(self) -> str:
        """Mark of the desktops that workers with this state directory start, whatever their deployment is called."""
        return _stack_id(self.state_dir)

    @property
    def artifacts(self) -> str:
        """URL of the artifact store, the default filled in."""
        return self.artifact_url or (self.state_dir / "artifacts").as_uri()

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, for a child process. May hold secrets."""
        found = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is not None:
                plain = value.get_secret_value() if isinstance(value, SecretStr) else value
                found[f"ROLLBOOK_{name.upper()}"] = str(plain)
        return found

    def digest(self) -> str:
        """Compare the settings of two processes (secrets left out)."""
        # the queue by its name in effect: a shell with the exports of `rollbook env` has the same settings
        values = self.model_copy(update={"task_queue": self.task_queue_orchestrate})
        return hashlib.sha256(values.model_dump_json().encode()).hexdigest()[:16]

    @property
    def osworld_tasks(self) -> Path:
        """The directory of OSWorld's canonical tasks."""
        return self.shared / "osworld"


def load_settings(**overrides: Any) -> Settings:
    """Read the settings now. Raises ConfigError that names each bad variable and what it takes."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once."""
    return load_settings()


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else "?"
        field = Settings.model_fields.get(name)
        meaning = f" ({field.description})" if field is not None and field.description else ""
        lines.append(f"ROLLBOOK_{name.upper()}: {problem['msg']}{meaning}")
    return "; ".join(lines)
