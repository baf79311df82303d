"""The registry of sandbox providers: built-in ones, and those that installed packages offer as entry points.

A package registers a provider with one line of its `pyproject.toml`, the name first, then its `ProviderKind`:

    [project.entry-points."rollbook.sandbox_providers"]
    mycloud = "mycloud.rollbook:KIND"
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint, entry_points

from models.explain import did_you_mean
from rollbook.config.settings import Settings
from rollbook.errors import ConfigError, InvalidInput
from rollbook.sandboxes.provider import ProviderKind, SandboxProvider

GROUP = "rollbook.sandbox_providers"

BUILT_IN = (
    EntryPoint("docker", "rollbook.sandboxes.docker.provider:KIND", GROUP),
    EntryPoint("null", "rollbook.sandboxes.null:KIND", GROUP),
)


def provider_names() -> list[str]:
    """Names of all registered providers, sorted."""
    return sorted(_registered())


def provider_kind(name: str) -> ProviderKind:
    """The registration of a provider. Raises InvalidInput for an unknown name, ConfigError if it cannot be loaded."""
    registered = _registered()
    if name not in registered:
        hint = did_you_mean(name, registered)
        raise InvalidInput(
            f"desktop.provider: unknown provider {name!r}; use {' or '.join(sorted(registered))}"
            f"{f' ({hint})' if hint else ''}"
        )
    entry = registered[name]
    try:
        kind = entry.load()
    except Exception as error:  # code of another package: whatever it raises
        raise ConfigError(f"sandbox provider {name!r} ({entry.value}) cannot be loaded: {error}") from error
    if not isinstance(kind, ProviderKind) or kind.name != name:
        raise ConfigError(f"sandbox provider {name!r} ({entry.value}) must be a ProviderKind of that name")
    return kind


def provider_kinds() -> list[ProviderKind]:
    """All registrations, by name."""
    return [provider_kind(name) for name in provider_names()]


def open_enabled(settings: Settings, timeout_s: float = 60.0) -> dict[str, SandboxProvider]:
    """Open the providers that these settings enable; `timeout_s` limits one request to a provider."""
    return {kind.name: kind.open(settings, timeout_s) for kind in provider_kinds() if kind.enabled(settings)}


@asynccontextmanager
async def opened_providers(settings: Settings, timeout_s: float = 60.0) -> AsyncIterator[dict[str, SandboxProvider]]:
    """`open_enabled`, closed at the end."""
    providers = open_enabled(settings, timeout_s)
    try:
        yield providers
    finally:
        for provider in providers.values():
            await provider.close()


def _registered() -> dict[str, EntryPoint]:
    # Not cached: reading the metadata takes a few milliseconds, and tests install providers.
    registered = {entry.name: entry for entry in BUILT_IN}
    for entry in entry_points(group=GROUP):
        if registered.setdefault(entry.name, entry).value != entry.value:
            raise ConfigError(f"sandbox provider {entry.name!r} is registered twice: {entry.value} must be renamed")
    return registered
