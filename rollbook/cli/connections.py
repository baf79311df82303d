"""Connections of one command: settings, ledger, reader of the ledger, Temporal, links into web pages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

from temporalio.client import Client
from temporalio.service import RPCError

from models import attributes
from rollbook.cli.command import Unreachable
from rollbook.config.connections import (
    artifact_base_url,
    ledger_url,
    local_stack,
    temporal_connect_config,
    temporal_ui_url,
)
from rollbook.config.settings import Settings, load_settings
from rollbook.errors import ConfigError
from rollbook.ledger import Ledger
from rollbook.ledger.reader import Reader
from rollbook.redaction import redact, redact_head, register_settings
from rollbook.temporal.plugin import RollbookPlugin

CONNECT_S = 15.0


def settings() -> Settings:
    """The settings of this process; raises ConfigError that names each bad variable.

    Where none names a deployment, it is that of the local stack in the state directory.
    """
    config = load_settings()
    if "deployment_id" not in config.model_fields_set and (state := local_stack(config)):
        config = state.settings_of(config)
    register_settings(config)
    return config


def redact_reason(config: Settings, words: str) -> str:
    """The reason that a person wrote, without passwords, tokens and keys that this machine knows."""
    register_profiles(config)
    return redact(words)


def register_profiles(config: Settings) -> None:
    """Redact the keys of endpoint profiles from now on."""
    from rollbook.policies.client.profile import load_profiles  # slow to import

    with contextlib.suppress(ConfigError):  # workers report a broken file; the profiles that could be read count
        load_profiles(config)


@asynccontextmanager
async def open_ledger(config: Settings) -> AsyncIterator[Ledger]:
    """The ledger, for commands that write to it."""
    ledger = Ledger.connect(ledger_url(config, "operator"), pool_size=2)
    try:
        yield ledger
    finally:
        await ledger.aclose()


@asynccontextmanager
async def open_reader(config: Settings) -> AsyncIterator[Reader]:
    """The ledger, for commands that only read."""
    reader = Reader.connect(ledger_url(config, "operator"))
    try:
        yield reader
    finally:
        await reader.aclose()


async def connect(config: Settings) -> Client:
    """A Temporal client; raises Unreachable that names the address."""
    server = temporal_connect_config(config)
    try:
        async with asyncio.timeout(CONNECT_S):
            return await Client.connect(**server, plugins=[RollbookPlugin()])
    except (RuntimeError, RPCError, TimeoutError) as error:
        first = redact_head((str(error) or "no answer").splitlines()[0], 200)
        raise Unreachable(
            f"Temporal does not answer at {server.get('target_host')}: {first}; is it running (`rollbook ps`)?"
        ) from error


@dataclass(frozen=True)
class Links:
    """Addresses of web pages; empty when the local stack is not up."""

    ui: str | None = None
    artifacts: str | None = None
    namespace: str = "default"

    @classmethod
    def of(cls, settings: Settings) -> "Links":
        ui = temporal_ui_url(settings)
        namespace = temporal_connect_config(settings).get("namespace", "default") if ui else "default"
        return cls(ui, artifact_base_url(settings), namespace)

    def workflow(self, workflow_id: str) -> str | None:
        """A batch or an episode in the Temporal UI."""
        return self.ui and f"{self.ui}/namespaces/{self.namespace}/workflows/{quote(workflow_id, safe='')}"

    def episodes(self, batch_id: str) -> str | None:
        """The list of a batch's episodes in the Temporal UI."""
        wanted = quote(f'{attributes.BATCH}="{batch_id}"', safe="")
        return self.ui and f"{self.ui}/namespaces/{self.namespace}/workflows?query={wanted}"

    def artifact(self, sha256: str | None) -> str | None:
        """The bytes of an artifact."""
        return f"{self.artifacts}/artifacts/{sha256}" if self.artifacts and sha256 else None
