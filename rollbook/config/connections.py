"""Addresses of Temporal, the ledger and the artifact links, for every process of Rollbook.

Explicit configuration wins; what is left open is filled in from the local stack, if it runs.
"""

from typing import Literal

from temporalio.envconfig import ClientConfig, ClientConnectConfig

from rollbook.config.settings import Settings
from rollbook.errors import ConfigError
from rollbook.stack.state import StackState, StateDir

_HINT = "start the local stack with `rollbook up`"


def temporal_connect_config(settings: Settings) -> ClientConnectConfig:
    """Keyword arguments for `Client.connect`: `TEMPORAL_*` and the profile first, then the local stack.

    Raises ConfigError if nothing says where Temporal is.
    """
    config = ClientConfig.load_client_connect_config()
    if not config.get("target_host"):
        state = local_stack(settings)
        if state is None or state.temporal_address is None:
            raise ConfigError(f"no Temporal server is known: {_HINT}, or set TEMPORAL_ADDRESS")
        config["target_host"] = state.temporal_address
        config.setdefault("namespace", state.temporal_namespace)
    return config


LedgerRole = Literal["owner", "worker", "operator", "reader"]
"""A role in the ledger: the owner migrates, workers run episodes, people's commands operate or read."""


def ledger_url(settings: Settings, role: LedgerRole) -> str:
    """SQLAlchemy URL of the ledger (driver psycopg) for a role. May hold a password: never log it.

    Of a ledger that a setting names, the login is that of the setting. Raises ConfigError if neither a setting nor a
    running local stack provides one.
    """
    if settings.database_url is not None:
        owner = settings.owner_database_url if role == "owner" else None
        return (owner or settings.database_url).get_secret_value()
    state = local_stack(settings)
    if state is None or state.database_url is None:
        raise ConfigError(f"no ledger is known: {_HINT}, or set ROLLBOOK_DATABASE_URL")
    return as_role(state.database_url, role)


def as_role(url: str, role: LedgerRole) -> str:
    """The URL of an embedded Postgres, which is its owner's, for the login of another role."""
    return url if role == "owner" else url.replace("//rollbook@", f"//rollbook_{role}@", 1)


def artifact_base_url(settings: Settings) -> str | None:
    """`http://127.0.0.1:PORT` of the artifact server, None when the local stack is not up."""
    state = local_stack(settings)
    return None if state is None else state.artifact_base_url


def temporal_ui_url(settings: Settings) -> str | None:
    """`http://127.0.0.1:PORT` of the local Temporal UI, None when the local stack is not up."""
    state = local_stack(settings)
    return None if state is None else state.temporal_ui_url


def local_stack(settings: Settings) -> StackState | None:
    """The local stack's state while its supervisor lives, else None."""
    state = StateDir.of(settings).read()
    return state if state is not None and state.running() else None
