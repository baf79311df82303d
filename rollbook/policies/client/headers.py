"""Correlation headers: which rollout, step and parse attempt a request belongs to, for the logs of whoever serves it.

They never enter the model's body (upstream contract §2.1).
"""

import re
from collections.abc import Mapping
from urllib.parse import quote

OWN_PREFIX = "x-rollbook-"
UPSTREAM_PREFIX = "x-nemo-gym-log-"

UPSTREAM_FIELDS = frozenset(
    [
        "run_id",
        "adapter",
        "rollout_purpose",
        "sampling_event_id",
        "source_group_id",
        "execution_id",
        "rollout_id",
        "group_id",
        "rollout_index",
        "attempt_index",
        "task_id",
        "domain",
        "task_attempt",
        "step",
        "parse_attempt",
        "agent_contract_id",
        "history_policy_id",
        "model_protocol_id",
    ]
)
"""Fields that upstream sends too, under its own prefix (upstream contract §2.1)."""

VALUE_LIMIT = 1024
_BREAKS = re.compile(r"[\r\n]+")
_NAME = re.compile(r"[^A-Za-z0-9-]+")


def header_value(value: object) -> str:
    """The value as a header may carry it: no line breaks or control characters, ASCII, at most 1,024 characters.

    What is not printable ASCII is percent-encoded.
    """
    text = _BREAKS.sub("", str(value)).strip()
    safe = "".join(c if c.isascii() and c.isprintable() else quote(c, safe="", errors="replace") for c in text)
    return safe[:VALUE_LIMIT]


def correlation_headers(fields: Mapping[str, object]) -> dict[str, str]:
    """`x-rollbook-<field>` for every field that has a value, and upstream's header where it knows the field."""
    found: dict[str, str] = {}
    for field, value in fields.items():
        text = "" if value is None else header_value(value)
        name = _NAME.sub("-", field).strip("-").lower()
        if not text or not name:
            continue
        found[OWN_PREFIX + name] = text
        if field in UPSTREAM_FIELDS:
            found[UPSTREAM_PREFIX + name] = text
    return found
