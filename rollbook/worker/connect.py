"""Opens what settings describe: Temporal, the ledger, the artifact store, providers, the evaluator."""

from temporalio.client import Client, Plugin

from rollbook.artifacts import ArtifactStore
from rollbook.config.connections import artifact_base_url, ledger_url, temporal_connect_config
from rollbook.config.settings import Settings
from rollbook.ledger import Ledger
from rollbook.osworld.environment import EvaluatorEnv, ensure_environment
from rollbook.policies.client import ModelClients
from rollbook.redaction import register_settings
from rollbook.sandboxes.registry import open_enabled
from rollbook.worker.services import Services


async def connect_temporal(settings: Settings, plugin: Plugin) -> Client:
    """A Temporal client; where the server is comes from `TEMPORAL_*`, a profile, or the local stack."""
    return await Client.connect(**temporal_connect_config(settings), plugins=[plugin])


async def open_services(settings: Settings, role: str = "all") -> Services:
    """Everything that activities of `role` need; raises ConfigError that names what is missing."""
    register_settings(settings)
    return Services(
        settings=settings,
        ledger=Ledger.connect(ledger_url(settings), pool_size=settings.ledger_connections),
        artifacts=ArtifactStore.open(settings.artifacts),
        providers=open_enabled(settings),
        evaluator=await _evaluator(role),
        artifact_base_url=artifact_base_url(settings) or "",
        models=ModelClients.from_settings(settings),
    )


async def _evaluator(role: str) -> EvaluatorEnv | None:
    """Setup and scoring need it; registration needs to know its revision, which is part of the contract."""
    return None if role == "desktop" else await ensure_environment(log=lambda line: None)
