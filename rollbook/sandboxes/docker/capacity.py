"""How many desktops may run at once on a Docker host, without a lock between workers.

Each desktop is created first (that is its ticket) and starts only when the desktops before it leave room. A running
desktop always comes before one that has not started, and among those the older creation wins, so workers that race
for the last place agree on the winner.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from rollbook.errors import CapacityBusy
from rollbook.sandboxes.docker.engine import Engine
from rollbook.sandboxes.docker.spec import created_at
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT

STALE_TICKET = timedelta(seconds=120)
"""A container that has not started by then belongs to a worker that died; it holds no place."""


class Capacity:
    """Places for the desktops of one deployment on one engine."""

    def __init__(self, engine: Engine, deployment: str, max_desktops: int) -> None:
        self._engine = engine
        self._labels = {LABEL_DEPLOYMENT: deployment}
        self._max = max_desktops

    async def check(self) -> None:
        """Raises CapacityBusy when every place is taken: a cheap look before anything is created."""
        rows = await self._engine.rows(self._labels)
        self._judge(sum(row["State"] in ("running", "paused", "restarting") for row in rows))

    async def admit(self, container_id: str) -> None:
        """Let a created container have its place, or remove it and raise CapacityBusy."""
        rows = await self._engine.rows(self._labels)
        running = [row for row in rows if row["State"] in ("running", "paused", "restarting")]
        waiting = [row for row in rows if row["State"] == "created"]
        if len(running) + len(waiting) <= self._max:
            return
        try:
            self._judge(len(running) + await self._earlier(container_id, waiting))
        except CapacityBusy:
            await self._engine.remove(container_id)
            raise

    async def _earlier(self, container_id: str, waiting: list[dict[str, Any]]) -> int:
        times: dict[str, datetime] = {}
        for row in waiting:
            details = await self._engine.inspect(row["Id"])
            if details is not None:
                times[row["Id"]] = created_at(details)
        mine = (times.get(container_id, datetime.now(UTC)), container_id)
        fresh = datetime.now(UTC) - STALE_TICKET
        return sum(fresh < at and (at, other) < mine for other, at in times.items() if other != container_id)

    def _judge(self, taken: int) -> None:
        if taken >= self._max:
            raise CapacityBusy(f"{taken} of {self._max} desktops are running (ROLLBOOK_MAX_DESKTOPS)")
