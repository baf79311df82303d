"""Scripts are read from the ledger once, and the least used ones are forgotten."""

from typing import Any

from rollbook.ledger import Ledger
from rollbook.policies.scripted import Scripts


class Shelf(Ledger):
    """Counts what is read."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def script_body(self, script_digest: str) -> dict[str, Any]:
        self.asked.append(script_digest)
        return {"note": script_digest, "tasks": {}}


async def test_each_digest_is_read_once_while_it_is_in_use() -> None:
    shelf, scripts = Shelf(), Scripts(size=2)
    for name in ("a", "b", "a", "b", "a", "c", "a", "b"):
        assert (await scripts.get(shelf, name)).note == name
    assert shelf.asked == ["a", "b", "c", "b"], "c took the place of b, the least used one"
