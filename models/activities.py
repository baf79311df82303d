"""The activities as workflows call them and workers implement them: a name, the type it takes, the type it returns.

`workflows` may not import `activities`, so both import this: find an implementation by the references to its constant.
"""

import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from models import names
from models.batch import (
    CloseBatch,
    Control,
    Counts,
    EvaluatorFacts,
    ImageFacts,
    Inspect,
    PumpRequest,
    PumpResult,
    RegisterBatch,
    RegisteredBatch,
)
from models.episode import (
    Acted,
    ActRequest,
    AttemptRef,
    Claimed,
    ClaimRequest,
    DecideRequest,
    Decision,
    DesktopRef,
    DesktopRequest,
    Evaluated,
    EvaluateRequest,
    Examined,
    ExamineRequest,
    Finalized,
    FinalizeRequest,
    Observed,
    PhaseDone,
)
from models.explain import explain
from models.janitor import Reconciled, ReconcileRequest

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class Activity(Generic[In, Out]):
    """A typed reference to an activity."""

    name: str
    """The name in Temporal."""
    request: type[In]
    result: type[Out]

    def read(self, answer: Any) -> Out:
        """Read a result, which a person may have completed by hand; raises ValueError.

        Workflows read it here and give Temporal no `result_type`: a result that Temporal cannot decode would fail
        the workflow's task again and again.
        """
        try:
            return TypeAdapter(self.result).validate_json(json.dumps(answer))
        except ValidationError as error:
            raise ValueError(f"{self.name}: its result cannot be read: {explain(error)}") from error


CLAIM = Activity(names.CLAIM, ClaimRequest, Claimed)
FINALIZE = Activity(names.FINALIZE, FinalizeRequest, Finalized)
REGISTER_BATCH = Activity(names.REGISTER_BATCH, RegisterBatch, RegisteredBatch)
INSPECT_IMAGE = Activity(names.INSPECT_IMAGE, Inspect, ImageFacts)
INSPECT_EVALUATOR = Activity(names.INSPECT_EVALUATOR, Inspect, EvaluatorFacts)

SET_CONTROL = Activity(names.SET_CONTROL, Control, type(None))
PUMP = Activity(names.PUMP, PumpRequest, PumpResult)
CLOSE_BATCH = Activity(names.CLOSE_BATCH, CloseBatch, Counts)

START_SANDBOX = Activity(names.START_SANDBOX, AttemptRef, DesktopRef)
RENEW_LEASE = Activity(names.RENEW_LEASE, AttemptRef, type(None))
STOP_SANDBOX = Activity(names.STOP_SANDBOX, AttemptRef, type(None))
EXAMINE_DESKTOP = Activity(names.EXAMINE_DESKTOP, ExamineRequest, Examined)

PREPARE_TASK = Activity(names.PREPARE_TASK, DesktopRequest, PhaseDone)
RUN_POSTCONFIG = Activity(names.RUN_POSTCONFIG, DesktopRequest, PhaseDone)
EVALUATE = Activity(names.EVALUATE, EvaluateRequest, Evaluated)

OBSERVE = Activity(names.OBSERVE, DesktopRequest, Observed)
DECIDE = Activity(names.DECIDE, DecideRequest, Decision)
ACT = Activity(names.ACT, ActRequest, Acted)

RECONCILE = Activity(names.RECONCILE, ReconcileRequest, Reconciled)
