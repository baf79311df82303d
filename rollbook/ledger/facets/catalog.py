"""Task sets, scripts and artifacts: what batches are made of."""

from collections.abc import Iterable
from typing import Any

from models.evidence import ArtifactRef
from models.task import Task
from rollbook.ledger import catalog
from rollbook.ledger.engine import reading, transaction
from rollbook.ledger.facets.base import Facet
from rollbook.ledger.records import RegisteredSet


class Catalog(Facet):
    """Task sets, scripts and artifacts: what batches are made of."""

    async def register_task_set(self, name: str, tasks: list[Task]) -> RegisteredSet:
        """Register tasks under a name; the newest registration of a name wins."""
        async with transaction(self.engine) as conn:
            return await catalog.register_task_set(conn, name, tasks)

    async def find_task_set(self, ref: str) -> RegisteredSet:
        """The set that `name` or `name@digest` means now; raises InvalidInput that says what there is."""
        async with reading(self.engine) as conn:
            return await catalog.find_task_set(conn, ref)

    async def tasks_of(self, set_digest: str, ids: Iterable[str] | None = None) -> list[Task]:
        """Tasks of a set with their documents, by task id."""
        async with reading(self.engine) as conn:
            return await catalog.tasks_of(conn, set_digest, ids)

    async def register_script(self, name: str, body: dict[str, Any]) -> str:
        """Register a script file under a name; its digest."""
        async with transaction(self.engine) as conn:
            return await catalog.register_script(conn, name, body)

    async def find_script(self, ref: str) -> str:
        """Digest of the script that `name` or `name@digest` means now."""
        async with reading(self.engine) as conn:
            return await catalog.find_script(conn, ref)

    async def script_body(self, script_digest: str) -> dict[str, Any]:
        """The script file with this digest."""
        async with reading(self.engine) as conn:
            return await catalog.script_body(conn, script_digest)

    async def record_artifacts(self, refs: Iterable[ArtifactRef | None]) -> None:
        """Note bytes that the artifact store holds."""
        async with transaction(self.engine) as conn:
            await catalog.record_artifacts(conn, refs)
