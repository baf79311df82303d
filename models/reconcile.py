"""What the Janitor is asked and what it found."""

from models.base import Wire


class ReconcileRequest(Wire):
    """One run of the Janitor; the deployment is the worker's own, the namespace its client's."""

    min_age_s: float | None = None
    """Seconds a row must have been quiet; None takes the worker's setting."""
    sightings: int = 2
    """How often a workflow must be missing, in different runs, before anything is concluded."""


class Reconciled(Wire):
    """What one run found and did. Lists hold at most 50 names each; the counts are complete."""

    looked_at: int = 0
    """Rows that claim to be under way."""
    alive: int = 0
    missing: int = 0
    """Rows whose workflow was not found, this time."""
    closed: list[str] = []
    """Attempts closed as `reconciled`: their workflow is gone."""
    requeued: list[str] = []
    """Queued rows put back to waiting: their workflow never claimed and is gone."""
    cancelled: list[str] = []
    """Workflows that still ran although their row had been final for long."""
    reaped: list[str] = []
    """Desktops of ended attempts that were still there."""
    strangers: int = 0
    """Desktops with this deployment's label that the ledger does not know: reported, never touched."""
    unattended: list[str] = []
    """Batches with rows to run and no live workflow: launch them again to go on."""
    doubts: list[str] = []
    """What could not be looked at, so that nothing was concluded from it."""
