"""The scripts that a worker has read: parsed once, not once per step."""

from collections import OrderedDict

from rollbook.ledger import Ledger
from rollbook.policies.scripted import Script, read_script


class Scripts:
    """Parsed scripts by digest, the last used ones. A digest names one content for ever: nothing here is stale."""

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._known: OrderedDict[str, Script] = OrderedDict()

    async def get(self, ledger: Ledger, script_digest: str) -> Script:
        """The script of a digest; raises InvalidInput when the ledger has none, or when it is not a script."""
        known = self._known.get(script_digest)
        if known is None:
            known = read_script(await ledger.script_body(script_digest))
            self._known[script_digest] = known
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        self._known.move_to_end(script_digest)
        return known
