"""What Postgres can hold: text without NUL and lone surrogates, JSON without NaN and infinities.

Text that a guest, a model or an evaluator produced is kept with the replacement character in place of what cannot be
stored (the exact bytes are in the artifact store); a number that is none is refused.
"""

import math
import re
from typing import Any

from rollbook.redaction import redact_value

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def storable(value: Any) -> Any:
    """The value, its text made storable; raises ValueError for NaN and infinities."""
    if isinstance(value, str):
        return _UNSTORABLE.sub(REPLACEMENT, value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number that JSON can hold")
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


def told(value: Any) -> Any:
    """What others said, storable and without secrets. Actions are not told but done: they are kept as they are."""
    return redact_value(storable(value))
