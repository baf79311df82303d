"""The connections that a worker's activities use, opened once per process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client, Plugin

from models.episode import DesktopRequest
from rollbook.artifacts import ArtifactStore
from rollbook.config.connections import artifact_base_url, ledger_url, temporal_connect_config
from rollbook.config.settings import Settings
from rollbook.desktop.driver import Driver
from rollbook.errors import ConfigError, ForeignDeployment, ForeignServer
from rollbook.ledger import Ledger
from rollbook.osworld.environment import EvaluatorEnv, ensure_environment
from rollbook.policies.client import ModelClients
from rollbook.policies.scripted import Scripts
from rollbook.redaction import register_settings
from rollbook.sandboxes.provider import SandboxProvider
from rollbook.sandboxes.registry import open_enabled, provider_kind, provider_names
from rollbook.temporal.namespace import worker_identity
from rollbook.worker.wakeup import WakeUp


@dataclass
class ServerProblem:
    """A finding of `rollbook.worker.server_check`."""

    problem: str = ""


@dataclass(frozen=True)
class Services:
    """Connections of one worker process."""

    settings: Settings
    ledger: Ledger
    artifacts: ArtifactStore
    providers: Mapping[str, SandboxProvider] = field(default_factory=dict)
    evaluator: EvaluatorEnv | None = None
    artifact_base_url: str = ""
    wake_up: WakeUp = field(default_factory=WakeUp)
    """Notified when an episode of this process ended or its desktop was removed."""
    models: ModelClients = field(default_factory=ModelClients)
    scripts: Scripts = field(default_factory=Scripts)
    foreign_server: ServerProblem = field(default_factory=ServerProblem)
    """Set while this worker speaks with another Temporal server than the ledger's."""
    _owners: dict[str, str] = field(default_factory=dict)
    """Deployments of batches that were looked up before: they never change."""

    async def check_own(self, batch_id: str) -> None:
        """Refuse another deployment's batch, whose desktops and artifacts are elsewhere, and any on a foreign server.

        Raises ForeignDeployment, ForeignServer.
        """
        if self.foreign_server.problem:
            raise ForeignServer(self.foreign_server.problem)
        owner = self._owners.get(batch_id) or await self.ledger.deployment_of(batch_id)
        if owner is None:
            return  # not registered yet, or not at all: the caller sees that itself
        self._owners[batch_id] = owner
        self.check_deployment(owner, f"batch {batch_id}")

    def check_deployment(self, owner: str, what: str) -> None:
        """Raise ForeignDeployment unless `owner` is this worker's deployment."""
        if owner != self.settings.deployment_id:
            raise ForeignDeployment(
                f"{what} belongs to deployment {owner!r}, this worker to {self.settings.deployment_id!r}, and they "
                "poll one task queue: give each deployment its own (ROLLBOOK_TASK_QUEUE)"
            )

    def provider(self, name: str) -> SandboxProvider:
        """The provider that a contract names; raises ConfigError when this worker does not offer it."""
        if provider := self.providers.get(name):
            return provider
        # Not InvalidInput: another worker may have the package or the setting, so the call must be tried again.
        hint = provider_kind(name).enable_hint if name in provider_names() else "install the package that has it"
        raise ConfigError(f"desktop.provider: this worker does not offer {name!r}; {hint or 'see its documentation'}")

    async def driver(self, request: DesktopRequest) -> Driver:
        """The desktop of an attempt; raises SandboxLost when the provider reports it dead."""
        return await self.provider(request.desktop.provider).driver(request, self.evaluator)

    def work_dir(self, sandbox_key: str) -> Path:
        """Private directory of one attempt on this host."""
        return self.work_root / sandbox_key

    @property
    def work_root(self) -> Path:
        """The directory of all attempts of this deployment; another one may use the same state directory."""
        return self.settings.state_dir / "work" / self.settings.deployment_id

    async def close(self) -> None:
        """Close every connection; desktops stay."""
        for provider in self.providers.values():
            await provider.close()
        await self.models.close()
        await self.ledger.aclose()


# Opens what settings describe: Temporal, the ledger, the artifact store, providers, the evaluator.


async def connect_temporal(settings: Settings, plugin: Plugin) -> Client:
    """A Temporal client; where the server is comes from `TEMPORAL_*`, a profile, or the local stack."""
    identity = worker_identity(settings.deployment_id)
    return await Client.connect(**temporal_connect_config(settings), plugins=[plugin], identity=identity)


async def open_services(settings: Settings, role: str = "all") -> Services:
    """Everything that activities of `role` need; raises ConfigError that names what is missing."""
    register_settings(settings)
    return Services(
        settings=settings,
        ledger=Ledger.connect(ledger_url(settings, "worker"), pool_size=settings.ledger_connections),
        artifacts=ArtifactStore.open(settings.artifacts),
        providers=open_enabled(settings),
        evaluator=await _evaluator(role),
        artifact_base_url=artifact_base_url(settings) or "",
        models=ModelClients.from_settings(settings),
    )


async def _evaluator(role: str) -> EvaluatorEnv | None:
    """Setup and scoring need it; registration needs to know its revision, which is part of the contract."""
    return None if role == "desktop" else await ensure_environment(log=lambda line: None)
