"""What every part of the ledger stands on."""

from sqlalchemy.ext.asyncio import AsyncEngine

from rollbook.ledger import steps


class Facet:
    """Holds the connection pool."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._contexts = steps.Contexts()
