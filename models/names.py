"""Names of workflows, activities and signals: the stable interface between workflows, activities and people."""

from typing import Final

EPISODE: Final = "Episode"
BATCH: Final = "BenchmarkBatch"
JANITOR: Final = "Janitor"

CLAIM: Final = "claim"
FINALIZE: Final = "finalize"
REGISTER_BATCH: Final = "register_batch"
SET_CONTROL: Final = "set_control"
PUMP: Final = "pump"
CLOSE_BATCH: Final = "close_batch"
START_SANDBOX: Final = "start_sandbox"
RENEW_LEASE: Final = "renew_lease"
STOP_SANDBOX: Final = "stop_sandbox"
EXAMINE_DESKTOP: Final = "examine_desktop"
PREPARE_TASK: Final = "prepare_task"
RUN_POSTCONFIG: Final = "run_postconfig"
EVALUATE: Final = "evaluate"
OBSERVE: Final = "observe"
DECIDE: Final = "decide"
ACT: Final = "act"
RECONCILE: Final = "reconcile"

PAUSE: Final = "pause"
RESUME: Final = "resume"
STOP: Final = "stop"
SET_CONCURRENCY: Final = "set_concurrency"
FREEZE: Final = "freeze"
THAW: Final = "thaw"

INVALID_INPUT: Final = "InvalidInput"
FENCED: Final = "Fenced"
"""Types of activity errors that are not infrastructure failures; those use their reason as the type."""

GUEST_FAILED: Final = "guest_failed"
"""Detail of an `evaluator_error`: an exchange with the guest failed, so a fresh desktop may help."""
