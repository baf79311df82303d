"""Text from outside as the ledger keeps it: storable, and without the operator's secrets."""

from collections.abc import Mapping
from typing import Any

from models.sanitize import sanitize
from rollbook.errors import InvalidInput
from rollbook.redaction import redact_value


def redact_text(value: Any) -> Any:
    """Sanitize a text or JSON value and remove secrets from it.

    Not for actions: they are kept exactly as they are executed.
    """
    return redact_value(sanitize(value))


def require_no_secrets(document: Mapping[str, Any]) -> None:
    """Raise InvalidInput that names the key of a JSON object whose value holds a secret of this process."""
    for name, value in document.items():
        if redact_value(value) != value:
            # Not redacted in silence: Temporal may hold the input already, where nothing can take it out.
            raise InvalidInput(
                f"{name}: holds a password, token or key that this machine knows; remove it, "
                "and replace the secret if this was sent to Temporal"
            )
