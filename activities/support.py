"""Support of all activities: typed errors for workflows, and heartbeats during work."""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, Protocol, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from models import names
from models.activities import Activity
from models.episode import DesktopRequest
from models.identity import batch_of
from models.janitor import ReconcileRequest
from rollbook.desktop.driver import Driver
from rollbook.errors import (
    ArtifactError,
    BatchStopping,
    CapacityBusy,
    ConfigError,
    EvaluatorError,
    Fenced,
    ForeignDeployment,
    InfraError,
    InvalidInput,
    LedgerConflict,
    LedgerError,
    ModelRefused,
    ProviderUnavailable,
    RollbookError,
)
from rollbook.policies.client import RateLimited
from rollbook.redaction import redact_head
from rollbook.worker.services import Services

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="WithServices")
In = TypeVar("In")
Out = TypeVar("Out")

PAYLOAD_LIMIT_BYTES = 16 * 1024

TRIED_AGAIN: dict[type[RollbookError], bool] = {
    RollbookError: True,
    ConfigError: True,  # a worker with wrong settings must not fail a rollout that another worker can run
    ArtifactError: True,  # a store that is not mounted looks like a missing artifact
    InvalidInput: False,
    LedgerError: True,
    Fenced: False,
    BatchStopping: False,
    LedgerConflict: False,
    InfraError: False,  # ends the attempt with its reason; the ledger decides whether another one is due
    CapacityBusy: True,
    ProviderUnavailable: True,
    RateLimited: True,
}
"""Classes of errors after which Temporal retries an activity; others follow their nearest base.

Exceptions from outside the tree (a store that is down, a full disk, a cut connection) are always tried again.
"""

FOREIGN_PAUSE = timedelta(seconds=0.5)

BEAT_S = 5.0
"""Longest pause between two heartbeats: a cancel reaches the activity with its next heartbeat."""
FIRST_BEAT_S = 1.0
"""An activity that ends sooner sends no heartbeat: each one is a request to the server, and a write there."""


class WithServices(Protocol):
    """An object with activities."""

    _services: Services


def implements(
    definition: Activity[In, Out],
) -> Callable[[Callable[[A, In], Awaitable[Out]]], Callable[[A, In], Awaitable[Out]]]:
    """Make a method the activity of a definition; its types must be those of the definition. See `reported`.

    Work of another deployment is refused, and tried again until one of its own workers takes it: two deployments may
    have been given one task queue by mistake.
    """

    def decorate(work: Callable[[A, In], Awaitable[Out]]) -> Callable[[A, In], Awaitable[Out]]:
        @functools.wraps(work)
        async def own(self: A, request: In) -> Out:
            await _check_own(self._services, request)
            return await work(self, request)

        return activity.defn(name=definition.name)(reported(own))

    return decorate


async def _check_own(services: Services, request: Any) -> None:
    """Raise ForeignDeployment when the request is about another deployment's batch, or for its Janitor."""
    if isinstance(request, ReconcileRequest):
        services.check_deployment(request.deployment_id or services.settings.deployment_id, "the Janitor's run")
        return
    attempt = getattr(request, "attempt", request)
    await services.check_own(batch_of(attempt.rollout_key) if hasattr(attempt, "rollout_key") else attempt.batch_id)


def reported(work: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Turn exceptions of the tree into Temporal errors with a type that workflows understand.

    The type of an infrastructure error is its `reason`. Errors outside the tree are unchanged; see `TRIED_AGAIN`.
    """

    @functools.wraps(work)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return _small(await work(*args, **kwargs))
        except RollbookError as error:
            raise to_application_error(error) from error
        except ValidationError as error:  # a record that cannot be written will not become valid by waiting
            raise ApplicationError(redact_head(str(error), 4000), type="InvalidRecord", non_retryable=True) from error

    return wrapped


def _small(result: R) -> R:
    """Refuse a large result: histories hold references and small facts, or they outgrow Temporal's limits."""
    if isinstance(result, BaseModel) and (size := len(result.model_dump_json())) > PAYLOAD_LIMIT_BYTES:
        raise ApplicationError(f"a result of {size} bytes does not belong in a history", non_retryable=True)
    return result


def to_application_error(error: RollbookError) -> ApplicationError:
    """Convert an error of the tree to a Temporal error; see `reported`."""
    text = redact_head(str(error), 4000)
    if isinstance(error, CapacityBusy | RateLimited):  # to be retried later: not a failure, and never another attempt
        return ApplicationError(
            text,
            type="CapacityBusy" if isinstance(error, CapacityBusy) else "RateLimited",
            next_retry_delay=timedelta(seconds=error.retry_after_s),
            category=ApplicationErrorCategory.BENIGN,
        )
    if isinstance(error, ForeignDeployment):  # its own worker polls the same queue: it may be quick to take it
        return ApplicationError(text, type=_type_of(error), next_retry_delay=FOREIGN_PAUSE)
    details = [names.GUEST_FAILED] if isinstance(error, EvaluatorError) and error.guest_failed else []
    details += [names.REFUSED] if isinstance(error, ModelRefused) else []
    return ApplicationError(text, *details, type=_type_of(error), non_retryable=not tried_again(error))


def tried_again(error: RollbookError) -> bool:
    """See `TRIED_AGAIN`."""
    return next(TRIED_AGAIN[base] for base in type(error).__mro__ if base in TRIED_AGAIN)


def _type_of(error: RollbookError) -> str:
    if isinstance(error, InfraError):
        return error.reason
    if isinstance(error, Fenced | BatchStopping):
        return names.FENCED
    return names.INVALID_INPUT if isinstance(error, InvalidInput) else type(error).__name__


@contextlib.asynccontextmanager
async def beating() -> AsyncIterator[Callable[[str], None]]:
    """Heartbeat in the background; yields a function that sets the note which the heartbeats carry."""
    notes = ["started"]

    def note(text: str) -> None:
        notes[0] = text

    timeout = activity.info().heartbeat_timeout
    pause = min(BEAT_S, timeout.total_seconds() / 3) if timeout else BEAT_S
    task = asyncio.create_task(_beat(pause, notes))
    try:
        yield note
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _beat(pause: float, notes: list[str]) -> None:
    await asyncio.sleep(min(pause, FIRST_BEAT_S))
    while True:
        activity.heartbeat(notes[0])
        await asyncio.sleep(pause)


def time_left() -> Callable[[], float]:
    """Return a function: seconds until this try of the activity times out, by the worker's clock."""
    info, now = activity.info(), time.monotonic()
    limits = [math.inf]
    if info.start_to_close_timeout:
        limits.append(info.start_to_close_timeout.total_seconds())
    if info.schedule_to_close_timeout:
        waited = datetime.now(UTC) - info.scheduled_time
        limits.append((info.schedule_to_close_timeout - waited).total_seconds())
    ends = now + min(limits)
    return lambda: ends - time.monotonic()


def run_id() -> str:
    """Run id of the workflow that this activity works for: half of the fence, never taken from inputs."""
    value = activity.info().workflow_run_id
    assert value is not None, "an activity of Rollbook runs within a workflow"
    return value


def workflow_id() -> str:
    """Id of the workflow that this activity works for."""
    value = activity.info().workflow_id
    assert value is not None, "an activity of Rollbook runs within a workflow"
    return value


async def is_current_try() -> bool:
    """Return whether Temporal still waits for this try of the activity, which may have stalled and timed out.

    Raises RPCError when Temporal does not answer.
    """
    info = activity.info()
    handle = activity.client().get_workflow_handle(workflow_id(), run_id=run_id())
    pending = (await handle.describe()).raw_description.pending_activities
    return any(try_.activity_id == info.activity_id and try_.attempt == info.attempt for try_ in pending)


Activities = list[Callable[..., Any]]


@contextlib.asynccontextmanager
async def driving(services: Services, call: DesktopRequest) -> AsyncIterator[Driver]:
    """The desktop of an attempt; its connections are closed afterwards."""
    driver = await services.driver(call)
    try:
        yield driver
    finally:
        await driver.close()
