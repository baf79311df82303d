"""The call log of one step over the ledger and the artifact store, and work that a cancel does not cut."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from obstore.exceptions import BaseError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from models.episode import AttemptRef
from models.evidence import ArtifactRef
from rollbook.artifacts import ArtifactStore
from rollbook.errors import LedgerConflict
from rollbook.ledger import Ledger
from rollbook.ledger.records import CallRecord, ModelCall
from rollbook.policies.base import Answer, summary_of
from rollbook.redaction import redact_head

T = TypeVar("T")

CANCEL_PATIENCE_S = 30.0
"""Longest wait of a cancel for the end of the work, in seconds."""


async def finish_despite_cancel(work: Coroutine[Any, Any, T], patience_s: float = CANCEL_PATIENCE_S) -> T:
    """The result of `work`. A cancel, however often it comes, is raised once the work has ended or patience has."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        clock = asyncio.get_running_loop().time
        ends = clock() + patience_s
        while not task.done() and (left := ends - clock()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=left)
        task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # the caller gets the cancel, not the error
        raise


def answered_s(calls: Iterable[CallRecord], step: int) -> float:
    """Seconds of the answered calls of a step."""
    return sum(call.latency_s or 0.0 for call in calls if call.step == step and call.completed)


JSON = "application/json"

PATIENCE_S = 600.0
"""Longest wait of an answer in the worker while ledger or store are away, in seconds."""
LONGEST_PAUSE_S = 15.0
SPARE_S = 5.0
"""Seconds before the end of the activity's time at which a commit is given up: the error should still be reported."""

_ABOUT_THE_ROW = ("22", "54")
"""Classes of SQLSTATE for a value that no repetition makes storable: data exceptions, limits of the program."""

log = logging.getLogger(__name__)


class Unstorable(LedgerConflict):
    """No row can hold this call, however often it is tried."""


@dataclass(frozen=True)
class LedgerCallLog:
    """Commits as the run that owns the attempt; raises Fenced when it no longer does."""

    ledger: Ledger
    artifacts: ArtifactStore
    attempt: AttemptRef
    run_id: str
    step: int
    policy_kind: str
    time_left: Callable[[], float] = lambda: math.inf
    """Seconds that the activity has left."""

    async def until_now(self) -> list[CallRecord]:
        """Every committed call up to and including this step, in order."""
        return await self.ledger.calls_until(self.attempt, self.step)

    async def commit(self, answer: Answer, parse_attempt: int = 1) -> CallRecord:
        """Store the bytes, then the row; the row that was committed first counts.

        While ledger or store are away it is tried again: the answer exists here only, and to ask for it again would
        be another answer. Raises Unstorable for what no row can hold.
        """
        ends = time.monotonic() + min(PATIENCE_S, self.time_left() - SPARE_S)
        pause = 0.5
        while True:
            try:
                return await self._commit(answer, parse_attempt)
            except (SQLAlchemyError, BaseError, OSError) as error:
                if _hopeless(error):
                    raise Unstorable(_said(error)) from error
                if time.monotonic() + pause > ends:
                    raise
                log.warning("the answer of step %d waits to be committed: %s", self.step, _said(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _commit(self, answer: Answer, parse_attempt: int) -> CallRecord:
        refs = {
            "prompt": await self._put(answer.prompt, JSON),
            "response": await self._put(answer.response, answer.response_media_type),
            "image": await self._put(answer.image, "image/png"),
            "tokens": await self._put(answer.tokens, JSON),
        }
        try:
            row = self._row(answer, parse_attempt, refs)
            return await self.ledger.commit_model_call(self.attempt, self.run_id, row)
        except (ValueError, TypeError, RecursionError) as error:  # of pydantic, or of the driver's writing it as JSON
            raise Unstorable(_said(error)) from error

    def _row(self, answer: Answer, parse_attempt: int, refs: dict[str, ArtifactRef | None]) -> ModelCall:
        return ModelCall(
            step=self.step,
            parse_attempt=parse_attempt,
            policy_kind=self.policy_kind,
            actions=answer.actions,
            terminal_action=answer.terminal_action,
            policy_stop_reason=answer.policy_stop_reason,
            completed=answer.completed,
            accepted=answer.accepted,
            parse_error=answer.parse_error,
            failure_kind=answer.failure_kind,
            finish_reason=answer.finish_reason,
            summary=summary_of(answer),
            model_name=answer.model_name or None,
            model_version=answer.model_version,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            latency_s=answer.latency_s,
            telemetry=answer.telemetry,
            said=answer.said,
            **refs,
        )

    async def _put(self, data: bytes | None, media_type: str) -> ArtifactRef | None:
        return None if data is None else await self.artifacts.put(data, media_type)


def _hopeless(error: Exception) -> bool:
    if isinstance(error, DBAPIError):
        return str(getattr(error.orig, "sqlstate", None) or "").startswith(_ABOUT_THE_ROW)
    return isinstance(error, StatementError)  # the driver could not even send it


def _said(error: Exception) -> str:
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    return redact_head(f"{type(cause).__name__}: {cause}", 500)
