"""Opens what one command needs, no more: the ledger, the reader of the ledger, Temporal, the artifact store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.client import Client
from temporalio.service import RPCError

from rollbook.cli.failures import Unreachable
from rollbook.config.connections import ledger_url, temporal_connect_config
from rollbook.config.settings import Settings, load_settings
from rollbook.errors import ConfigError
from rollbook.ledger import Ledger
from rollbook.ledger.reader import Reader
from rollbook.redaction import redact, register_settings
from rollbook.temporal.plugin import RollbookPlugin

CONNECT_S = 15.0


def settings() -> Settings:
    """The settings of this process; raises ConfigError that names each bad variable."""
    found = load_settings()
    register_settings(found)
    return found


def kept(found: Settings, words: str) -> str:
    """What a person wrote, as it may be kept: without passwords, tokens and keys that this machine knows."""
    from rollbook.policies.client.profile import load_profiles  # slow to import

    with contextlib.suppress(ConfigError):  # a broken file is the workers' trouble; what could be read counts
        load_profiles(found)
    return redact(words)


@asynccontextmanager
async def open_ledger(found: Settings) -> AsyncIterator[Ledger]:
    """The ledger, for commands that write to it."""
    ledger = Ledger.connect(ledger_url(found), pool_size=2)
    try:
        yield ledger
    finally:
        await ledger.aclose()


@asynccontextmanager
async def open_reader(found: Settings) -> AsyncIterator[Reader]:
    """The ledger, for commands that only read."""
    reader = Reader.connect(ledger_url(found))
    try:
        yield reader
    finally:
        await reader.aclose()


async def connect(found: Settings) -> Client:
    """A Temporal client; raises Unreachable that names the address."""
    config = temporal_connect_config(found)
    try:
        async with asyncio.timeout(CONNECT_S):
            return await Client.connect(**config, plugins=[RollbookPlugin()])
    except (RuntimeError, RPCError, TimeoutError) as error:
        first = (str(error) or "no answer").splitlines()[0][:200]
        raise Unreachable(
            f"Temporal does not answer at {config.get('target_host')}: {first}; is it running (`rollbook ps`)?"
        ) from error
