"""Text from outside as the ledger keeps it: storable, and without the operator's secrets."""

from typing import Any

from models.sanitize import sanitize
from rollbook.redaction import redact_value


def redact_text(value: Any) -> Any:
    """Sanitize a text or JSON value and remove secrets from it.

    Not for actions: they are kept exactly as they are executed.
    """
    return redact_value(sanitize(value))
