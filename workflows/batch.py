"""BenchmarkBatch: keeps a window of episodes running until the ledger reports the batch complete."""

import asyncio
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from models import activities, attributes, names
from models.activities import Activity
from models.batch import (
    BatchResult,
    CloseBatch,
    Control,
    Counts,
    Inspect,
    PumpRequest,
    PumpResult,
    RegisterBatch,
    RegisteredBatch,
)
from models.identity import BATCH_ID
from models.spec import BatchSpec, read_spec
from workflows.control import read_control
from workflows.shield import settled, shielded

In = TypeVar("In")
Out = TypeVar("Out")

RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=2, maximum_interval=timedelta(seconds=15)
)

RESULT_TRIES = 3
"""Calls of an activity whose result cannot be read: it was completed by hand, and the next call returns its own."""

FIRST_SLICE_S = 5.0
"""The first pump call is short, so that the Temporal UI soon shows counts."""


@workflow.defn(name=names.BATCH)
class BenchmarkBatch:
    """Takes one JSON object, the batch spec, and runs every planned rollout.

    The workflow id is the batch id. Control (paused, stopping, concurrency) lives in the batch's row: handlers write
    it, the pump reads it, and so nothing is lost when the workflow continues as new.
    """

    def __init__(self) -> None:
        self._registered: RegisteredBatch | None = None
        self._order = asyncio.Lock()
        self._waiting_controls = 0
        self._counts = Counts()
        self._remark = ""
        self._held = ""
        self._pumped = False

    @workflow.run
    async def run(self, *inputs: Any) -> BatchResult:
        try:
            return await self._run(inputs)
        except BaseException as error:
            if not (isinstance(error, asyncio.CancelledError) or is_cancelled_exception(error)):
                raise
            await self._close()
            raise

    async def _run(self, inputs: tuple[Any, ...]) -> BatchResult:
        self._registered = registered = await self._register(inputs)
        continued = workflow.info().continued_run_id is not None
        await workflow.wait_condition(lambda: self._waiting_controls == 0)
        if registered.added == 0 and registered.final == registered.planned and not continued:
            return await self._finish("already complete", await self._pump())
        for number in range(registered.slices_per_run):
            await workflow.wait_condition(lambda: self._waiting_controls == 0)
            pumped = await self._pump(thaw=number == 0 and not continued)
            if pumped.state != "continue":
                return await self._finish("complete" if pumped.state == "whole" else "stopped", pumped)
        await workflow.wait_condition(workflow.all_handlers_finished)
        _continue_as_new(inputs)

    @workflow.signal(name=names.PAUSE)
    async def pause(self, options: Any = None) -> None:
        """Start nothing new; `{"freeze": true}` also suspends running episodes."""
        await self._control(names.PAUSE, options)

    @workflow.signal(name=names.RESUME)
    async def resume(self, options: Any = None) -> None:
        """Undo `pause`."""
        await self._control(names.RESUME, options)

    @workflow.signal(name=names.STOP)
    async def stop(self, options: Any = None) -> None:
        """Let running episodes finish, then end; planned rows stay planned and a relaunch resumes."""
        await self._control(names.STOP, options)

    @workflow.signal(name=names.SET_CONCURRENCY)
    async def set_concurrency(self, options: Any = None) -> None:
        """Change how many episodes run at once: a number, or `{"concurrency": N}`."""
        await self._control(names.SET_CONCURRENCY, options)

    @workflow.update(name="control")
    async def control(self, request: dict[str, Any]) -> dict[str, Any]:
        """The signals with an acknowledgement: `{"verb": "pause", …}`; refused with a message that names the field."""
        verb = str(request.get("verb", ""))
        await self._write(read_control(workflow.info().workflow_id, verb, _without(request, "verb")))
        return {"verb": verb, "written": True}

    @control.validator
    def _check_control(self, request: dict[str, Any]) -> None:
        read_control(workflow.info().workflow_id, str(request.get("verb", "")), _without(request, "verb"))

    @workflow.query(name="counts")
    def counts(self) -> Counts:
        """The counts as of the last pump; the ledger has the current ones."""
        return self._counts

    async def _control(self, verb: str, options: Any) -> None:
        try:
            change = read_control(workflow.info().workflow_id, verb, options)
        except ValueError as error:
            self._refused(verb, str(error))
            return
        try:
            await self._write(change)
        except ActivityError as error:
            # unhandled, it would fail the workflow: a signal must never do that
            self._refused(verb, str(error.cause or error))

    def _refused(self, verb: str, reason: str) -> None:
        self._remark = f"refused signal {verb}: {reason}"
        self._show("running")

    async def _write(self, change: Control) -> None:
        """Write changes in the order of arrival; one that arrives before registration waits for it."""
        self._waiting_controls += 1
        try:
            async with self._order:
                await workflow.wait_condition(lambda: self._registered is not None)
                change = change.model_copy(update={"launch_id": workflow.info().first_execution_run_id})
                await self._call(activities.SET_CONTROL, change, 30, summary=change.verb)
        finally:
            self._waiting_controls -= 1

    async def _register(self, inputs: tuple[Any, ...]) -> RegisteredBatch:
        info = workflow.info()
        spec = _read(info.workflow_id, inputs)
        if isinstance(spec, str):
            _refuse(spec)
        workflow.upsert_search_attributes(
            [
                SearchAttributeKey.for_keyword(attributes.BATCH).value_set(info.workflow_id),
                SearchAttributeKey.for_keyword(attributes.POLICY).value_set(spec.policy.kind),
            ]
        )
        request = RegisterBatch(
            batch_id=info.workflow_id,
            namespace=info.namespace,
            spec=spec,
            launch_id=info.first_execution_run_id,
        )
        refused = ""
        try:
            registered = await settled(self._call(activities.REGISTER_BATCH, request, 600, heartbeat_s=60))
            if registered.inspect is not None:
                request = await self._inspect(request, registered.inspect)
                registered = await settled(self._call(activities.REGISTER_BATCH, request, 600, heartbeat_s=60))
            self._remark = registered.notice
            return registered
        except ActivityError as error:
            if not isinstance(error.cause, ApplicationError) or not error.cause.non_retryable:
                raise
            refused = error.cause.message
        _refuse(refused)

    async def _inspect(self, request: RegisterBatch, inspect: Inspect) -> RegisterBatch:
        """Resolve image and evaluator where they are: that may be another host than this activity's."""
        image = await settled(
            self._call(
                activities.INSPECT_IMAGE,
                inspect,
                3600,
                heartbeat_s=60,
                queue=inspect.desktop_queue,
                summary=inspect.image,
            )
        )
        evaluator = await settled(self._call(activities.INSPECT_EVALUATOR, inspect, 60, queue=inspect.osworld_queue))
        return request.model_copy(update={"image": image, "evaluator": evaluator})

    async def _pump(self, thaw: bool = False) -> PumpResult:
        assert self._registered is not None
        slice_s = self._registered.slice_s if self._pumped else min(FIRST_SLICE_S, self._registered.slice_s)
        self._pumped = True
        pumped = await settled(
            self._call(
                activities.PUMP,
                PumpRequest(batch_id=self._registered.batch_id, slice_s=slice_s, thaw=thaw, held=bool(self._held)),
                slice_s + 120,
                heartbeat_s=self._registered.heartbeat_s,
                summary="keep the window full",
            )
        )
        self._counts, self._held = pumped.counts, pumped.held
        self._show(pumped.state)
        return pumped

    async def _close(self) -> None:
        """After a cancel: stop the episodes of the ledger's list and close every open row."""
        info = workflow.info()
        request = CloseBatch(
            batch_id=info.workflow_id,
            reason=workflow.cancellation_reason() or "",
            launch_id=info.first_execution_run_id,
        )
        try:
            self._counts, _ = await shielded(self._call(activities.CLOSE_BATCH, request, 3600, heartbeat_s=30))
            self._show("cancelled")
        except ActivityError as error:
            kind = error.cause.type if isinstance(error.cause, ApplicationError) else None
            registered = self._registered is not None
            if kind != names.FENCED and (registered or kind != names.INVALID_INPUT):
                raise
            # never registered, or launched again meanwhile: the rows do not belong to this launch
            workflow.logger.info("cancelled, with nothing to close: %s", error.cause)

    async def _finish(self, state: Any, pumped: PumpResult) -> BatchResult:
        await workflow.wait_condition(workflow.all_handlers_finished)
        batch_id = workflow.info().workflow_id
        self._show(state)
        hint = "relaunch the same spec to resume" if state == "stopped" else f"rollbook audit {batch_id}"
        return BatchResult(batch_id=batch_id, state=state, counts=pumped.counts, digest=pumped.digest, next=hint)

    async def _call(
        self,
        activity: Activity[In, Out],
        request: In,
        seconds: float,
        *,
        heartbeat_s: float | None = None,
        queue: str | None = None,
        summary: str | None = None,
    ) -> Out:
        for _ in range(RESULT_TRIES):
            answer: Any = await workflow.execute_activity(
                activity.name,
                request,
                task_queue=queue,
                start_to_close_timeout=timedelta(seconds=seconds),
                heartbeat_timeout=timedelta(seconds=heartbeat_s) if heartbeat_s else None,
                retry_policy=RETRY,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=summary,
            )
            try:
                return activity.read(answer)
            except ValueError as error:
                self._remark = str(error)
                self._show("running")
        raise ApplicationError(self._remark, non_retryable=True)

    def _show(self, state: str) -> None:
        counts = self._counts
        lines = [
            f"**{workflow.info().workflow_id}**: {state}",
            "",
            f"- planned: {counts.planned}",
            f"- waiting: {counts.waiting}",
            f"- running: {counts.running}",
            f"- admitted: {counts.admitted}",
            f"- masked: {counts.masked}",
            *([f"- excluded tasks: {counts.excluded}"] if counts.excluded else []),
        ]
        for words in (self._held, self._remark):
            if words:
                lines += ["", words]
        workflow.set_current_details("\n".join(lines))


def _read(batch_id: str, inputs: tuple[Any, ...]) -> BatchSpec | str:
    """The spec, or an error message. Not raised here, so that no chain of causes hides the message in the UI."""
    if len(inputs) != 1:
        return f"the input must be one JSON object, the batch spec (given: {len(inputs)} inputs)"
    if not BATCH_ID.match(batch_id):
        return "workflow id: a batch id holds letters, digits, '_', '.' and '-' only, at most 128 of them"
    try:
        return read_spec(inputs[0])
    except ValueError as error:
        return str(error)


def _without(request: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name != key}


def _continue_as_new(inputs: tuple[Any, ...]) -> NoReturn:
    workflow.continue_as_new(args=inputs)


def _refuse(message: str) -> NoReturn:
    workflow.set_current_details(f"**{workflow.info().workflow_id}**: refused\n\n{message}")
    raise ApplicationError(message, type=names.INVALID_INPUT, non_retryable=True)
