"""Each error of an activity: tried again, or an end with a type that workflows understand."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationErrorCategory

import activities
import rollbook
from activities.support import to_application_error
from models import names
from models.outcome import Infra
from rollbook.config.settings import PROJECT_ROOT
from rollbook.errors import CapacityBusy, EvaluatorError, RollbookError
from rollbook.policies.client import RateLimited

AGAIN, ENDS = False, True

EXPECTED = {
    "RollbookError": ("RollbookError", AGAIN),
    "ConfigError": ("ConfigError", AGAIN),
    "ForeignDeployment": ("ForeignDeployment", AGAIN),
    "ForeignServer": ("ForeignServer", AGAIN),
    "InvalidInput": ("InvalidInput", ENDS),
    "SpecConflict": ("InvalidInput", ENDS),
    "LedgerError": ("LedgerError", AGAIN),
    "Fenced": ("Fenced", ENDS),
    "BatchStopping": ("Fenced", ENDS),
    "LedgerConflict": ("LedgerConflict", ENDS),
    "ArtifactError": ("ArtifactError", AGAIN),
    "InfraError": ("rollout_error", ENDS),
    "DownloadFailed": ("evaluator_error", ENDS),
    "ModelRefused": ("model_call_failed", ENDS),
    "CapacityBusy": ("CapacityBusy", AGAIN),
    "ProviderUnavailable": ("sandbox_lost", AGAIN),
    "SandboxStartFailed": ("sandbox_start_failed", ENDS),
    "NameTaken": ("sandbox_start_failed", ENDS),
    "NetworkGone": ("sandbox_start_failed", ENDS),
    "ContainerGone": ("sandbox_start_failed", ENDS),
    "ImageMissing": ("sandbox_start_failed", ENDS),
    "SandboxLost": ("sandbox_lost", ENDS),
    "GuestReplaced": ("sandbox_lost", ENDS),
    "NoScreen": ("desktop_broken", ENDS),
    "SetupFailed": ("setup_failed", ENDS),
    "SetupInterrupted": ("setup_interrupted", ENDS),
    "ActionTimeout": ("action_timeout", ENDS),
    "DesktopBroken": ("desktop_broken", ENDS),
    "ActionFailed": ("desktop_broken", ENDS),
    "ActionTooLong": ("rollout_error", ENDS),
    "GuestRefused": ("desktop_broken", ENDS),
    "ModelCallFailed": ("model_call_failed", ENDS),
    "CallError": ("model_call_failed", ENDS),
    "ContextOverflow": ("model_call_failed", ENDS),
    "RateLimited": ("RateLimited", AGAIN),
    "AuthFailed": ("model_call_failed", ENDS),
    "BadRequest": ("model_call_failed", ENDS),
    "TransportFailed": ("model_call_failed", ENDS),
    "ModelTimeout": ("model_timeout", ENDS),
    "DeadlinePassed": ("timeout", ENDS),
    "EvaluationInterrupted": ("evaluation_interrupted", ENDS),
    "EvaluatorError": ("evaluator_error", ENDS),
    # of the command line and the local stack; no activity raises them
    "OutOfTime": ("OutOfTime", AGAIN),
    "Unreachable": ("Unreachable", AGAIN),
    "Unstorable": ("Unstorable", ENDS),
    "Failed": ("Failed", AGAIN),
    "StackError": ("StackError", AGAIN),
}
"""Type towards the workflow, and whether the activity ends with it."""


def _tree(root: type[RollbookError]) -> Iterator[type[RollbookError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def _classes() -> dict[str, type[RollbookError]]:
    """Every class of the tree in the product, in all its modules."""
    for package in (rollbook, activities):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not re.search(r"__main__|\.guest\.|\.inside\.", module.name):
                importlib.import_module(module.name)
    return {one.__name__: one for one in _tree(RollbookError) if one.__module__.startswith(("rollbook", "activities"))}


def _error(kind: type[RollbookError]) -> RollbookError:
    return kind("why", retry_after_s=7.0) if issubclass(kind, CapacityBusy | RateLimited) else kind("why")


def test_the_fate_of_every_class_is_decided() -> None:
    found = {name: to_application_error(_error(kind)) for name, kind in _classes().items()}
    assert {name: (error.type, error.non_retryable) for name, error in found.items()} == EXPECTED
    assert all(error.message == "why" for error in found.values())


def test_an_end_has_a_type_that_the_episode_knows() -> None:
    """An end of an unknown type would be booked as whatever the activity's default reason is."""
    known = {reason.value for reason in Infra} | {names.FENCED, names.INVALID_INPUT, "LedgerConflict", "Unstorable"}
    assert {kind for kind, ends in EXPECTED.values() if ends} <= known


@pytest.mark.parametrize("kind", [CapacityBusy, RateLimited])
def test_who_is_asked_to_wait_waits_so_long_and_it_is_no_failure(kind: type[RollbookError]) -> None:
    error = to_application_error(_error(kind))
    assert (error.next_retry_delay, error.category) == (timedelta(seconds=7), ApplicationErrorCategory.BENIGN)


@pytest.mark.parametrize(("failed", "details"), [(True, [names.GUEST_FAILED]), (False, [])])
def test_an_evaluator_tells_whether_the_guest_failed(failed: bool, details: list[str]) -> None:
    assert list(to_application_error(EvaluatorError("why", guest_failed=failed)).details) == details


def test_nobody_raises_an_infrastructure_error_without_saying_which() -> None:
    """The plain class ends an attempt as `rollout_error` permanently, whatever the trouble was."""
    places = [
        f"{path.relative_to(PROJECT_ROOT)}: {line.strip()}"
        for package in ("rollbook", "activities")
        for path in (PROJECT_ROOT / package).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"raise (InfraError|RollbookError)\b", line)
    ]
    assert places == []
