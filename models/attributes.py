"""Search attributes of the Temporal namespace: the names people filter by in the Temporal UI and CLI.

SQL visibility allows 10 Keyword, 3 Int, 3 Double and 3 Bool attributes per namespace, for all batches together.
A namespace must have `SEARCH_ATTRIBUTES` registered.
"""

from typing import Final

BATCH: Final = "RolloutBatch"
"""Keyword: batch id."""
TASK: Final = "RolloutTask"
"""Keyword: OSWorld task id."""
DOMAIN: Final = "RolloutDomain"
"""Keyword: the task's folder, for instance `os` or `multi_apps`."""
POLICY: Final = "RolloutPolicy"
"""Keyword: the policy: a model name, or a kind such as `scripted`."""
TERMINATION: Final = "RolloutTermination"
"""Keyword: termination reason of the finished episode."""
OUTCOME: Final = "RolloutOutcome"
"""Keyword: how the episode counts, for instance admitted or masked."""
SAMPLE: Final = "RolloutSample"
"""Int: sample index within the task, from 0."""
ATTEMPT: Final = "RolloutAttempt"
"""Int: attempt index of the selected attempt, from 1."""
STEPS: Final = "RolloutSteps"
"""Int: steps taken by the selected attempt."""
SCORE: Final = "RolloutScore"
"""Double: the evaluator's score; absent where nothing was evaluated."""
ADMITTED: Final = "RolloutAdmitted"
"""Bool: the runtime admission decision."""

SEARCH_ATTRIBUTES: Final[dict[str, str]] = {
    BATCH: "Keyword",
    TASK: "Keyword",
    DOMAIN: "Keyword",
    POLICY: "Keyword",
    TERMINATION: "Keyword",
    OUTCOME: "Keyword",
    SAMPLE: "Int",
    ATTEMPT: "Int",
    STEPS: "Int",
    SCORE: "Double",
    ADMITTED: "Bool",
}
"""Name → type, as `temporal operator search-attribute create` spells the types."""
