"""Request and report of the Janitor."""

from typing import Any

from pydantic import Field, ValidationError

from models.base import Wire
from models.explain import explain


class ReconcileRequest(Wire):
    """One run of the Janitor; the namespace is that of the worker's client."""

    deployment_id: str = ""
    """The deployment to look after; empty: that of the worker which takes the request."""

    min_age_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds a row must have been quiet; None takes the worker's setting."""
    sightings: int = Field(default=2, ge=2, le=100)
    """Number of consecutive runs that must miss a workflow before anything is concluded."""
    gap_s: float = Field(default=10.0, gt=0, le=86_400, allow_inf_nan=False)
    """Least seconds between two sightings that count: a repeated activity, or a second run right away, adds none."""


def read_request(raw: Any) -> ReconcileRequest:
    """Read the request of any client; None is the default request. Raises ValueError that names the field."""
    if raw is not None and not isinstance(raw, dict):
        raise ValueError("the input must be one JSON object, or nothing: min_age_s, sightings, gap_s")
    try:
        return ReconcileRequest.model_validate(raw or {})
    except ValidationError as error:
        raise ValueError(explain(error)) from error


class Reconciled(Wire):
    """Findings and actions of one run. Lists hold a few names each; `totals` has the full counts."""

    looked_at: int = 0
    """Rows that claim to be under way."""
    alive: int = 0
    missing: int = 0
    """Rows whose workflow was not found in this run."""
    closed: list[str] = []
    """Attempts closed as `reconciled`: their workflow is gone."""
    requeued: list[str] = []
    """Queued rows put back to waiting: their workflow never claimed and is gone."""
    cancelled: list[str] = []
    """Workflows that still ran long after their row was final: cancelled."""
    reaped: list[str] = []
    """Desktops of ended attempts that were still there."""
    strangers: int = 0
    """Desktops with this deployment's label that the ledger does not know: reported, never touched."""
    finished: list[str] = []
    """Cancelled batches whose workflow went away before their rows were closed: closed now, with how many rows."""
    stopped: list[str] = []
    """Stopped batches whose workflow is gone: no episode runs any more, rows stay planned."""
    relaunched: list[str] = []
    """Batches that Temporal lost with its database: started again with their stored spec."""
    unattended: list[str] = []
    """Batches with rows to run and no live workflow: launch them again to go on."""
    doubts: list[str] = []
    """Subjects that could not be examined; nothing was concluded about them."""
    totals: dict[str, int] = {}
    """Full length of each list that is not empty."""
