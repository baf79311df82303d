"""The desktops of a deployment, at every sandbox provider that its settings enable."""

import asyncio

from rollbook.config.settings import Settings
from rollbook.errors import ProviderUnavailable
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, Removed
from rollbook.sandboxes.registry import opened_providers

LOOK_S = 10.0


async def count_desktops(settings: Settings) -> int | None:
    """Count the deployment's desktops; None if a provider does not answer."""
    labels = {LABEL_DEPLOYMENT: settings.deployment_id}
    try:
        async with opened_providers(settings, LOOK_S) as providers, asyncio.timeout(LOOK_S):
            return sum([len(await provider.list(labels)) for provider in providers.values()])
    except (ProviderUnavailable, TimeoutError):
        return None


async def remove_desktops(settings: Settings) -> Removed:
    """Remove every desktop and every network of the deployment.

    Raises ProviderUnavailable when a provider does not answer: something may be left then.
    """
    async with opened_providers(settings) as providers:
        removed = [await provider.remove_all(settings.deployment_id) for provider in providers.values()]
    return Removed(sum(one.desktops for one in removed), sum(one.networks for one in removed))
