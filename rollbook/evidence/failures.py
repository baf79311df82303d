"""What went wrong with a step's calls, also when the step succeeded in the end (upstream contract §1.6)."""

from collections import Counter
from typing import Any

from rollbook.ledger.reader import Row

REJECTED = ("output_truncated", "empty_response", "unparseable")
"""Failures of a call that got its reply."""


def parse_failure(calls: list[Row]) -> dict[str, Any] | None:
    """The record of a step's failures; None when there were none. The last fact decides admission, not this record."""
    failed = [call for call in calls if call["failure_kind"] is not None]
    if not failed:
        return None
    last = failed[-1]
    telemetry = last["telemetry"] or {}
    kind = last["failure_kind"]
    return {
        "attempt_count": len(calls),
        "completed_model_call_count": sum(call["completed"] for call in calls),
        "last_failure_stage": "response_parse" if kind in REJECTED else "model_call",
        "last_failure_kind": kind,
        "failure_kind_counts": dict(sorted(Counter(call["failure_kind"] for call in failed).items())),
        "prompt_shrink_events": sum((call["telemetry"] or {}).get("next_max_images") is not None for call in failed),
        "last_error_type": telemetry.get("error_type") or kind,
        "last_error": last["parse_error"],
    }
