"""The ledger as the activities, the CLI and the Janitor see it."""

from typing import Self

from rollbook.ledger.engine import create_engine
from rollbook.ledger.facets.attempts import Attempts
from rollbook.ledger.facets.batches import Batches
from rollbook.ledger.facets.catalog import Catalog
from rollbook.ledger.facets.desktops import Desktops
from rollbook.ledger.facets.reconciliation import Reconciliation
from rollbook.ledger.facets.revisions import Revisions


class Ledger(Catalog, Batches, Attempts, Desktops, Revisions, Reconciliation):
    """One object over one connection pool; every method is one transaction unless it says more.

    Methods raise errors of `rollbook.errors`, or OperationalError when Postgres is away.
    """

    @classmethod
    def connect(cls, url: str, pool_size: int = 10, role: str | None = None) -> Self:
        """A ledger at `url` (`postgresql+psycopg://…`); connects on first use. `role`: work as that database role."""
        return cls(create_engine(url, pool_size=pool_size, role=role))

    async def aclose(self) -> None:
        """Close every connection."""
        await self.engine.dispose()
