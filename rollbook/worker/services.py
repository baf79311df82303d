"""What a worker's activities stand on, opened once per process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from models.episode import DesktopRequest
from rollbook.artifacts import ArtifactStore
from rollbook.config.settings import Settings
from rollbook.desktop.driver import Driver
from rollbook.desktop.http_driver import HttpDriver
from rollbook.errors import ConfigError
from rollbook.guest.http import GUEST_PORT
from rollbook.ledger import Ledger
from rollbook.osworld.environment import EvaluatorEnv
from rollbook.policies.client import ModelClients
from rollbook.policies.scripted import Scripts
from rollbook.sandboxes.null import NullDriver
from rollbook.sandboxes.provider import SandboxProvider
from rollbook.worker.wakeup import WakeUp


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

    def provider(self, name: str) -> SandboxProvider:
        """The provider that a contract names; raises ConfigError when this worker has none of that name."""
        if found := self.providers.get(name):
            return found
        hint = "; set ROLLBOOK_ALLOW_NULL_DESKTOP=1 for benchmarks and rehearsals" if name == "null" else ""
        raise ConfigError(f"this worker has no sandbox provider {name!r}{hint}")

    async def driver(self, call: DesktopRequest) -> Driver:
        """The desktop of an attempt; raises SandboxLost when the provider says that it is dead."""
        desktop = call.desktop
        provider = self.provider(desktop.provider)
        if desktop.provider == "null":
            return NullDriver(call.attempt.rollout_key, call.attempt.attempt_index)
        guest = await provider.endpoint(desktop.sandbox_id, GUEST_PORT)
        return HttpDriver(desktop, guest, self.evaluator, lambda port: provider.endpoint(desktop.sandbox_id, port))

    def work_dir(self, sandbox_key: str) -> Path:
        """Private directory of one attempt on this host."""
        return self.settings.state_dir / "work" / sandbox_key

    async def close(self) -> None:
        """Close every connection; desktops stay."""
        for provider in self.providers.values():
            await provider.close()
        await self.models.close()
        await self.ledger.aclose()
