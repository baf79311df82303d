"""Tries of a phase: they share nothing on the worker's disk, and need the contract's evaluator."""

import uuid
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.osworld import OsworldActivities
from models.contract import Resolved
from models.episode import DesktopRef
from rollbook.errors import ConfigError
from rollbook.ledger.records import AttemptContext
from rollbook.worker.services import Services


def test_a_try_finds_nothing_that_a_killed_one_left(tmp_path: Path) -> None:
    """OSWorld's `get_cloud_file` never looks into a file that is there: half a gold file would score an honest 0."""
    services = cast(Services, SimpleNamespace(work_dir=lambda key: tmp_path / key))
    context: Any = {name: None for name in AttemptContext.__slots__} | {"task": {}, "contract": None}
    desktop = DesktopRef(provider="docker", sandbox_id="s", sandbox_key=uuid.uuid4().hex, nonce="n")
    activities = OsworldActivities(services)
    first, second = (
        ActivityEnvironment().run(activities._job, AttemptContext(**context), desktop, 1.0) for _ in range(2)
    )
    assert first.work_dir != second.work_dir
    assert first.work_dir.parent == second.work_dir.parent == tmp_path / desktop.sandbox_key  # removed with the desktop


@pytest.mark.parametrize(("ours", "refused"), [("r-1", False), ("r-2", True), (None, False)])
def test_only_the_evaluator_of_the_contract_scores(ours: str | None, refused: bool) -> None:
    """A worker that has the right one may take the work: the error is one that is tried again."""
    evaluator = None if ours is None else SimpleNamespace(revision=ours)
    activities = OsworldActivities(cast("Services", SimpleNamespace(evaluator=evaluator)))
    resolved = Resolved(evaluator_revision="r-1")
    context = cast("AttemptContext", SimpleNamespace(contract=SimpleNamespace(resolved=resolved)))
    refusal = pytest.raises(ConfigError, match="revision r-2, the batch was registered with r-1")
    with refusal if refused else nullcontext():
        activities._check_evaluator(context)
