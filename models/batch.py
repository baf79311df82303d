"""Messages between BenchmarkBatch and its activities: registration, control, progress, result."""

from typing import Literal

from pydantic import Field

from models.base import Input, Wire
from models.spec import BatchSpec


class Inspect(Wire):
    """Ask the workers of desktops and of the evaluator what a batch will run on, before anything is planned."""

    batch_id: str
    provider: str
    image: str
    field: str
    """The origin of the name, for the message when there is no such image."""
    desktop_queue: str
    osworld_queue: str


class ImageFacts(Wire):
    """An image as its provider knows it."""

    image: str
    """The name that was asked for."""
    digest: str | None = None
    """The provider's immutable identity of the image, whose manifest the ledger has; None where it has none."""


class EvaluatorFacts(Wire):
    """The evaluator of the workers that score."""

    revision: str


class RegisterBatch(Wire):
    """Register (or relaunch) a batch: plans every rollout as a row."""

    batch_id: str
    namespace: str
    spec: BatchSpec
    launch_id: str
    """First run id of this launch: control flags of an earlier launch are cleared once per launch."""
    image: ImageFacts | None = None
    evaluator: EvaluatorFacts | None = None
    """Answers to `RegisteredBatch.inspect`."""


class RegisteredBatch(Wire):
    """Answer to a registration."""

    batch_id: str
    planned: int
    """Rollouts of the batch, all of them."""
    added: int
    """Rollouts that this call added."""
    final: int
    """Rollouts that need no further attempt."""
    slice_s: float
    """Longest duration of one pump call, seconds."""
    slices_per_run: int
    """Pump calls before the workflow continues as new."""
    heartbeat_s: float = 30
    """Heartbeat timeout of the pump."""
    notice: str = ""
    """Something to know about the batch besides errors; shown with it."""
    inspect: Inspect | None = None
    """Nothing is registered yet: inspect this first, and repeat the request with the answers."""


class Counts(Wire):
    """Rollouts of a batch by state: planned = admitted + masked + running + waiting. Excluded tasks count apart."""

    planned: int = 0
    waiting: int = 0
    running: int = 0
    admitted: int = 0
    masked: int = 0
    excluded: int = 0
    """Tasks that were left out because they cannot be run or scored here; none of their rollouts is planned."""


class PumpRequest(Wire):
    """Keep a window of episodes running for at most `slice_s` seconds."""

    batch_id: str
    slice_s: float
    thaw: bool = False
    """Set on the first call of a launch: thaw episodes that an earlier launch left frozen."""
    held: bool = False
    """The workflow's details say that nothing is started; the pump returns soon when that is no longer so."""


class PumpResult(Wire):
    """Reason for which the pump returned, and the counts at that time."""

    state: Literal["whole", "stopped", "continue"]
    counts: Counts
    digest: str = ""
    """Digest of the whole batch."""
    held: str = ""
    """The reason for which nothing is started now."""


class Control(Wire):
    """A change of a batch's control, written by one idempotent activity."""

    batch_id: str
    verb: Literal["pause", "resume", "stop", "set_concurrency"]
    freeze: bool = False
    """With `pause`: also suspend running episodes; their deadlines stop."""
    concurrency: int | None = None
    reason: str = ""
    launch_id: str = ""
    """The launch that the change is for; refused once the batch is launched again. Empty: any launch."""


class CloseBatch(Wire):
    """Cancel what still runs and close every open row as cancelled."""

    batch_id: str
    reason: str = ""
    launch_id: str = ""
    """The launch that was cancelled: refused once the batch is launched again. Empty: any launch."""


class BatchResult(Wire):
    """Result of BenchmarkBatch."""

    batch_id: str
    state: Literal["complete", "already complete", "stopped", "cancelled"]
    counts: Counts
    digest: str = ""
    """SHA-256 of the batch's record when it was found whole, for `rollbook audit --expect`; empty when stopped."""
    next: str
    """The command that shows or resumes the batch."""


class PauseInput(Input):
    """Optional argument of the signal `pause`."""

    freeze: bool = False
    reason: str = ""


class ConcurrencyInput(Input):
    """Argument of the signal `set_concurrency`."""

    concurrency: int = Field(ge=1, le=10_000)
