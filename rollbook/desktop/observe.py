"""One observation of a desktop."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rollbook.desktop.client import GuestClient, GuestRefused
from rollbook.errors import SandboxLost
from rollbook.guest.http import declared_size


@dataclass(frozen=True)
class RawObservation:
    """The agent's view. `refused` names requested parts that a living guest did not give."""

    screenshot: bytes
    """PNG with the mouse cursor."""
    width: int
    """Pixels."""
    height: int
    accessibility_tree: str | None
    terminal: str | None
    taken_at: datetime
    """Host's clock, just before the screenshot was asked for."""
    refused: dict[str, str] = field(default_factory=dict)


async def observe(client: GuestClient, *, a11y: bool = False, terminal: bool = False) -> RawObservation:
    """Take a screenshot and, when asked for, the accessibility tree and the terminal's text.

    As in OSWorld, a part that the living guest refuses is None and the episode goes on; `refused` holds the
    refusal, which the activity logs. Raises SandboxLost, also when the picture came from another
    desktop than the client's.
    """
    taken_at = datetime.now(UTC)
    screenshot = await client.screenshot()
    width, height = declared_size(screenshot)
    refused: dict[str, str] = {}
    tree = await _optional(client, "accessibility_tree", client.accessibility, refused) if a11y else None
    text = await _optional(client, "terminal", client.terminal, refused) if terminal else None
    await client.verify()
    return RawObservation(screenshot, width, height, tree, text, taken_at, refused)


async def _optional(
    client: GuestClient, name: str, read: Callable[[], Awaitable[str | None]], refused: dict[str, str]
) -> str | None:
    try:
        return await read()
    except GuestRefused as error:
        refused[name] = str(error)
    except SandboxLost as error:
        await client.screenshot()  # a stopped application can hang the tree for ever while the desktop is well
        refused[name] = str(error)
    return None
